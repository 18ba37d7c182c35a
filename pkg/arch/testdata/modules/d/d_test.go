package d

import _ "example.com/x/probe"
