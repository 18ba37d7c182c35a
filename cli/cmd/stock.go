package cmd

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cilium/ebpf"
)

// stock counts what a lab could leave behind on this kernel.
type stock struct {
	links, pins, programs, maps, namespaces, processes int
}

// String prints the counts.
func (s stock) String() string {
	return fmt.Sprintf("%d links, %d pins, %d programs, %d maps, %d namespaces, %d processes", s.links, s.pins, s.programs, s.maps, s.namespaces, s.processes)
}

// takeStock counts the links of this namespace, pins below bpffs, programs and
// maps of the kernel, bound network namespaces and Weir's processes.
func takeStock(bpffs string) (s stock, err error) {
	links, err := net.Interfaces()
	if err != nil {
		return s, err
	}
	s.links = len(links)
	filepath.WalkDir(bpffs, func(string, os.DirEntry, error) error { s.pins++; return nil })
	s.programs, err = count(ebpf.ProgramGetNextID)
	if err != nil {
		return s, fmt.Errorf("counting programs: %w", err)
	}
	s.maps, err = count(ebpf.MapGetNextID)
	if err != nil {
		return s, fmt.Errorf("counting maps: %w", err)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return s, err
	}
	s.namespaces = strings.Count(string(mounts), " nsfs ")
	exes, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, e := range exes {
		if exe, err := os.Readlink(e); err == nil && strings.HasPrefix(filepath.Base(exe), "weir") {
			s.processes++
		}
	}
	return s, nil
}

func count[ID ~uint32](next func(ID) (ID, error)) (n int, err error) {
	for id := ID(0); ; n++ {
		if id, err = next(id); errors.Is(err, os.ErrNotExist) {
			return n, nil
		} else if err != nil {
			return n, err
		}
	}
}

// grown reports whether anything is more than in s. Less is no leftover: what
// others had on this machine is gone.
func (s stock) grown(now stock) bool {
	return now.links > s.links || now.pins > s.pins || now.programs > s.programs ||
		now.maps > s.maps || now.namespaces > s.namespaces || now.processes > s.processes
}

// settle waits up to 5 seconds until nothing is more than in s, since the kernel
// frees programs, maps and devices after grace periods. It returns what is left.
func (s stock) settle(bpffs string) (left string, err error) {
	for range 50 {
		now, err := takeStock(bpffs)
		if err != nil {
			return "", err
		}
		if !s.grown(now) {
			return "", nil
		}
		left = fmt.Sprintf("before %s; now %s", s, now)
		time.Sleep(100 * time.Millisecond)
	}
	return left, nil
}
