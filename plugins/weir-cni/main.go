package main

import (
	"os"

	"github.com/weirnet/weir/pkg/version"
	"github.com/weirnet/weir/plugins/weir-cni/cmd"
)

func main() { os.Exit(cmd.Main(version.String())) }
