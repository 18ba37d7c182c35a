package main

import (
	"os"

	"github.com/weirnet/weir/plugins/weir-cni/cmd"
)

// version is set by the linker: -X main.version=...
var version = "dev"

func main() {
	os.Exit(cmd.Main(version))
}
