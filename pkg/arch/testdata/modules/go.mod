module example.com/m

go 1.26

require example.com/x v0.0.0

replace example.com/x => ./x
