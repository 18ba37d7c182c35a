package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"time"

	"github.com/weirnet/weir/pkg/datapath/loader"
)

// limit is far above the second or two that clang takes for a shape.
const limit = 5 * time.Minute

func main() {
	sources := flag.String("sources", "bpf", "folder with bpf_lxc.c")
	out := flag.String("out", "bpf/objects", "folder for the objects")
	clang := flag.String("clang", "", "path or name of clang (default: clang-19, else clang)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	files, err := loader.BuildObjects(ctx, loader.Build{
		Clang: *clang, Sources: os.DirFS(*sources), Dir: *out,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}, loader.BuiltinShapes())
	if errors.Is(err, exec.ErrNotFound) {
		fmt.Fprintln(os.Stderr, "builtin: no clang to compile the data plane with; install clang-19 (make deps)")
		os.Exit(1)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "builtin:", err)
		os.Exit(1)
	}
	for _, f := range files {
		fmt.Println(f)
	}
}
