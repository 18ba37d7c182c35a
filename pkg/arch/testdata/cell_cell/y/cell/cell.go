package cell

import _ "example.com/m/x/cell"
