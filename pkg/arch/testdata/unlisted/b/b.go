package b

import _ "example.com/m/a"
