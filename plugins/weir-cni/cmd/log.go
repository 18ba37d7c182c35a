package cmd

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
)

func parseLevel(s string) (slog.Level, error) {
	if s == "" {
		return slog.LevelInfo, nil
	}
	var l slog.Level
	if err := l.UnmarshalText([]byte(s)); err != nil {
		return l, fmt.Errorf("%q is not debug, info, warn or error", s)
	}
	return l, nil
}

// openLog opens the configured log file to append, or falls back to stderr: a
// full disk must not keep a pod from starting.
func openLog(c *NetConf, stderr io.Writer) (*slog.Logger, func()) {
	level, _ := parseLevel(c.LogLevel) // checked by parseConfig
	opts := &slog.HandlerOptions{Level: level}
	if c.LogFile == "" {
		return slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: max(level, slog.LevelWarn)})), func() {}
	}
	err := os.MkdirAll(filepath.Dir(c.LogFile), 0o750)
	var f *os.File
	if err == nil {
		f, err = os.OpenFile(c.LogFile, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	}
	if err != nil {
		log := slog.New(slog.NewTextHandler(stderr, opts))
		log.Warn("the plugin's log file cannot be opened, logging here", "error", err)
		return log, func() {}
	}
	return slog.New(slog.NewTextHandler(f, opts)), func() { f.Close() }
}
