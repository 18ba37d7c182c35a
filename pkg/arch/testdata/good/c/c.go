package c

import _ "example.com/m/b"

import _ "example.com/m/a"
