package c

import _ "example.com/x"
