package filesource

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/weirnet/weir/pkg/filesource/lastgood"
	"github.com/weirnet/weir/pkg/policy/k8s"
)

// EmptyMark is the name of the empty file that says of a folder without YAML that
// it is meant to be so.
const EmptyMark = ".weir-empty"

// labMark is the file whose folder is read by weir lab alone: it lists hosts outside.
const labMark = "outside.yaml"

// maxDepth bounds how far below a folder files are looked for.
const maxDepth = 32

// renderers are the files whose folder is a recipe and no YAML of objects, with
// the command that makes the objects.
var renderers = []struct{ file, command string }{
	{"kustomization.yaml", "kubectl kustomize %s"}, {"kustomization.yml", "kubectl kustomize %s"}, {"Kustomization", "kubectl kustomize %s"},
	{"Chart.yaml", "helm template %s"},
}

// Listing is what stands in a folder.
type Listing struct {
	Files   []string                     // to be read, in the order of their names
	Dirs    map[string]lastgood.Identity // the folder and those below it that are read
	Recipes []Recipe                     // folders below that are not read
	Failed  map[string]error             // folders below that cannot be read
	Empty   bool                         // EmptyMark is there
}

// Recipe is a folder of which a program makes objects.
type Recipe struct{ Dir, Command string }

// String says that the folder is not read and what to do.
func (r Recipe) String() string {
	return fmt.Sprintf("is not read, because a program makes its objects: write them into a file of the folder with: %s > FILE.yaml; to look at them: %s | weir policy validate -", r.Command, r.Command)
}

// List names the files of a folder that are read, those below it too, or the file
// itself.
func List(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	l, err := Look(path)
	for _, failed := range l.Failed {
		err = errors.Join(err, failed)
	}
	return l.Files, err
}

// Files is List of a folder for those who need something in it: none is a mistake
// more often than not.
func Files(dir string) ([]string, error) {
	l, err := Look(dir)
	for _, failed := range l.Failed {
		err = errors.Join(err, failed)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading policies and pods: %w", err)
	case len(l.Files) > 0:
		return l.Files, nil
	case len(l.Recipes) > 0:
		return nil, fmt.Errorf("%s holds no YAML of objects: %s %s", dir, l.Recipes[0].Dir, l.Recipes[0])
	}
	return nil, fmt.Errorf("%s holds no YAML, and no folder below it does (hidden ones and links to folders are not read); give the folder of the policies", dir)
}

// Look lists a folder as the agent and the commands without an agent read it:
// with the folders below it, except hidden ones, links to folders, and recipes.
func Look(dir string) (Listing, error) {
	l := Listing{Dirs: map[string]lastgood.Identity{}, Failed: map[string]error{}}
	err := l.look(dir, 0)
	if err == nil {
		info, failed := os.Lstat(filepath.Join(dir, EmptyMark))
		l.Empty = failed == nil && info.Mode().IsRegular() && info.Size() == 0
	}
	slices.Sort(l.Files)
	return l, err
}

func (l *Listing) look(dir string, depth int) error {
	id, err := identify(dir)
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if depth > 0 {
		holds := func(name string) bool {
			return slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == name && !e.IsDir() })
		}
		if holds(labMark) {
			return nil
		}
		for _, r := range renderers {
			if holds(r.file) {
				l.Recipes = append(l.Recipes, Recipe{dir, fmt.Sprintf(r.command, dir)})
				return nil
			}
		}
	}
	l.Dirs[dir] = id
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		switch {
		case e.Name()[0] == '.':
		case e.IsDir():
			if depth == maxDepth {
				l.Failed[path] = fmt.Errorf("%s is more than %d folders down; keep it in a folder further up", path, maxDepth)
			} else if err := l.look(path, depth+1); err != nil {
				l.Failed[path] = err
			}
		case isYAML(e.Name()) && !linkToFolder(path, e):
			l.Files = append(l.Files, path)
		}
	}
	return nil
}

func isYAML(name string) bool {
	ext := filepath.Ext(name)
	return ext == ".yaml" || ext == ".yml" || ext == ".json"
}

func linkToFolder(path string, e fs.DirEntry) bool {
	if e.Type()&fs.ModeSymlink == 0 {
		return false
	}
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// identify returns the identity of a folder; what is no folder is an error.
func identify(dir string) (lastgood.Identity, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return lastgood.Identity{}, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return lastgood.Identity{}, &os.PathError{Op: "open", Path: dir, Err: errors.New("is not a folder; give the folder that holds the YAML")}
	}
	return lastgood.Identity{Device: st.Dev, Inode: st.Ino}, nil
}

// ReadFile reads a file of objects. Pipes and devices are refused: a reader may
// wait for their end for ever, and a second one, as lint and tests are, finds
// nothing.
func ReadFile(name string) ([]byte, error) {
	if err := regular(os.Stat(name)); err != nil {
		return nil, refuse(name, err)
	}
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0) // something else may have taken its place
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := regular(f.Stat()); err != nil {
		return nil, refuse(name, err)
	}
	return io.ReadAll(io.LimitReader(f, 2*k8s.MaxBytes)) // who gets more than MaxBytes refuses it
}

func regular(info fs.FileInfo, err error) error {
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return errNoFile
	}
	return nil
}

func refuse(name string, err error) error {
	if pe := new(os.PathError); errors.As(err, &pe) {
		return err
	}
	return &os.PathError{Op: "read", Path: name, Err: err}
}

var errNoFile = errors.New("is a pipe, a device or a folder; give a file")
