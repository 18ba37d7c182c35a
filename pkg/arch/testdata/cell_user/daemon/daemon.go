package daemon

import _ "example.com/m/x/cell"
