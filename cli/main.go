package main

import (
	"os"

	"github.com/weirnet/weir/cli/cmd"
)

func main() { os.Exit(cmd.Execute(os.Args[1:], os.Stdout, os.Stderr)) }
