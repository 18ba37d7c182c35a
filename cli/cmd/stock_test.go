package cmd

import (
	"reflect"
	"testing"
)

// One more of anything is a leftover, even where others took theirs away.
func TestOnlyWhatGrewIsLeftOver(t *testing.T) {
	before := stock{links: 2, pins: 25, programs: 40, maps: 30, namespaces: 3, processes: 1}
	if before.grown(before) || before.grown(stock{links: 1, pins: 3}) {
		t.Error("nothing grew")
	}
	for i := range reflect.TypeFor[stock]().NumField() {
		counts := [6]int{}
		counts[i] = [6]int{2, 25, 40, 30, 3, 1}[i] + 1
		if !before.grown(stock{counts[0], counts[1], counts[2], counts[3], counts[4], counts[5]}) {
			t.Errorf("%s grew", reflect.TypeFor[stock]().Field(i).Name)
		}
	}
}
