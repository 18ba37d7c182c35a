package b

import _ "example.com/x"
