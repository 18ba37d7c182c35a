package a

import _ "example.com/x"
