package cmd

import _ "example.com/m/cli"
