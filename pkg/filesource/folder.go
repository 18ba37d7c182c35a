package filesource

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/weirnet/weir/pkg/filesource/lastgood"
	"github.com/weirnet/weir/pkg/policy/k8s"
)

// Times after which what takes objects away is taken.
const (
	fewerAfter = time.Second            // since size and mtime of a file with fewer objects stand still
	goneAfter  = 300 * time.Millisecond // since a file is not there: more may follow
)

// State of a file or folder.
type State string

// The states. In all but the first, and in StateNever, what was in force before is.
const (
	StateGood    State = "good"
	StateBroken  State = "broken"  // what stands there is wrong
	StateNever   State = "never"   // broken, and no version was good yet
	StateHeld    State = "held"    // its folder is missing, another one or empty
	StateGone    State = "gone"    // it is not there any more; objects of it are kept
	StateWaiting State = "waiting" // it has fewer objects, and may not be written to its end
	StateLost    State = "lost"    // broken or held, and the last good version cannot be read
)

// file is what is known of one file. A new one is made for every look.
type file struct {
	versions []version // in force: the last good one, and earlier ones of which objects are kept
	read     reading
	state    State
	problems []Problem
	since    time.Time // of the state, unless it is good
}

// reading is what stands in a file.
type reading struct {
	text     string
	sum      string
	contents *contents // nil: it cannot be used
	problems []Problem
	size     int64
	mtime    time.Time
	seen     time.Time // when size and mtime were first these
}

// folder is what is known of a source.
type folder struct {
	path    string
	dirs    map[string]lastgood.Identity // zero: of another boot
	files   map[string]*file
	held    map[string]trouble // folders that change nothing
	flat    bool               // see lastgood.Source
	unknown time.Time          // see lastgood.Source
	missing string             // why it cannot be read, although it never held anything
	recipes []Recipe
	waiting []string // files of folders below that wait until the source is accepted
}

// trouble is why a folder changes nothing.
type trouble struct {
	why   string
	since time.Time
}

// look is one look at a folder.
type look struct {
	now     time.Time
	options Options
	accept  bool          // a person says that the folder is meant to be as it is
	upgrade bool          // the first look after an agent that kept no index
	wake    time.Duration // when to look again; 0: no need
}

func (l *look) again(after time.Duration) {
	if l.wake == 0 || after < l.wake {
		l.wake = max(after, time.Millisecond)
	}
}

// folder looks at a source and returns what is in force of it now.
func (l *look) folder(old *folder) *folder {
	next := &folder{path: old.path, dirs: map[string]lastgood.Identity{}, files: map[string]*file{}, held: map[string]trouble{},
		flat: old.flat && !l.accept, unknown: old.unknown}
	listing, err := Look(old.path)
	if err != nil {
		if l.accept {
			old, next.unknown = &folder{path: old.path}, time.Time{}
		}
		next.dirs = old.dirs
		l.hold(next, old, old.path, err.Error())
		if len(old.files) == 0 && next.unknown.IsZero() {
			next.held, next.missing = map[string]trouble{}, err.Error()
		}
		for path, f := range old.files {
			next.files[path] = l.held(f)
		}
		return next
	}
	meant := l.accept || listing.Empty && len(listing.Files) == 0
	now := l.readAll(old, listing)
	if !meant {
		l.distrust(next, old, listing, now)
	}
	l.take(next, old, listing, now)
	l.settle(next, meant)
	next.recipes = listing.Recipes
	for dir, id := range listing.Dirs {
		was, known := old.dirs[dir]
		switch {
		case next.inHeld(dir) && known:
			next.dirs[dir] = was
		case !next.inHeld(dir) && (dir == next.path || next.holds(dir)):
			next.dirs[dir] = id
		}
	}
	for dir := range next.held { // one that is missing is known by what it was
		if id, known := old.dirs[dir]; known {
			next.dirs[dir] = id
		}
	}
	if meant || next.whole() || l.upgrade && !next.broken() {
		next.unknown = time.Time{}
	}
	return next
}

// whole reports whether nothing of the folder is wrong and it holds something.
func (f *folder) whole() bool {
	return len(f.held) == 0 && f.missing == "" && len(f.files) > 0 && !f.broken()
}

// broken reports whether a file may hold objects that cannot be seen.
func (f *folder) broken() bool {
	if len(f.held) > 0 {
		return true
	}
	for _, one := range f.files {
		if one.state == StateBroken || one.state == StateNever || one.state == StateLost {
			return true
		}
	}
	return false
}

// holds reports whether a file stands in the folder, or below it.
func (f *folder) holds(dir string) bool {
	for path := range f.files {
		if below(path, dir) {
			return true
		}
	}
	return false
}

// inHeld reports whether a path is in a folder that changes nothing, or is one.
func (f *folder) inHeld(path string) bool {
	for dir := range f.held {
		if path == dir || below(path, dir) {
			return true
		}
	}
	return false
}

func below(path, dir string) bool { return strings.HasPrefix(path, dir+"/") }

func (l *look) hold(next, old *folder, dir, why string) {
	t := trouble{why, l.now}
	if was, ok := old.held[dir]; ok {
		t.since = was.since
	}
	next.held[dir] = t
}

// readAll reads the files that stand in the folder.
func (l *look) readAll(old *folder, listing Listing) map[string]reading {
	out := map[string]reading{}
	for _, path := range listing.Files {
		out[path] = l.read(path, old.files[path])
	}
	return out
}

// read reads a file. What has the text that was read before is not parsed again.
func (l *look) read(path string, old *file) reading {
	r := reading{seen: l.now}
	if info, err := os.Stat(path); err == nil {
		r.size, r.mtime = info.Size(), info.ModTime()
	}
	if old != nil && old.read.size == r.size && old.read.mtime.Equal(r.mtime) && !old.read.seen.IsZero() {
		r.seen = old.read.seen
	}
	text, err := ReadFile(path)
	if err == nil && len(text) > k8s.MaxBytes {
		err = fmt.Errorf("has %d bytes, the most is %d; split it into several files", max(r.size, int64(len(text))), k8s.MaxBytes)
	}
	if err != nil {
		r.problems = []Problem{{File: path, Text: err.Error()}}
		return r
	}
	r.text = string(text)
	if old != nil && old.read.sum != "" && old.read.text == r.text {
		r.sum, r.contents, r.problems = old.read.sum, old.read.contents, old.read.problems
		return r
	}
	r.sum = lastgood.Sum(text)
	if old != nil && len(old.versions) > 0 && old.versions[0].Sum == r.sum && old.versions[0].Only == nil && old.versions[0].contents != nil {
		r.contents = old.versions[0].contents
		return r
	}
	if r.contents, err = parse(text, path, l.options); err != nil {
		r.problems = problemsOf(err, path)
	}
	return r
}

// distrust finds the folders that change nothing: what cannot be read, is another
// folder than the one that was read, or holds nothing of what it held.
func (l *look) distrust(next, old *folder, listing Listing, now map[string]reading) {
	for _, dir := range slices.Sorted(maps.Keys(old.dirs)) {
		if next.inHeld(dir) || !old.inForce(dir) {
			continue
		}
		if err, failed := listing.Failed[dir]; failed {
			l.hold(next, old, dir, err.Error())
			continue
		}
		id, there := listing.Dirs[dir]
		if !there {
			if _, err := os.Lstat(dir); err == nil || !missing(err) {
				l.hold(next, old, dir, dir+" is no folder that is read any more")
			}
			continue // it went, with its files, from a folder that is there
		}
		was := old.dirs[dir]
		known := was != lastgood.Identity{} // else of another boot
		switch {
		case known && was != id && !old.same(dir, now):
			l.hold(next, old, dir, dir+" is another folder than the one that was read before")
		case known && dir != old.path: // files below may all go: the source holds others, or is held
		case old.noneLeft(dir, now) && !(was == id && old.moved(dir, now)):
			l.hold(next, old, dir, dir+" holds none of the files that it held")
		}
	}
}

func missing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || strings.Contains(err.Error(), "not a directory")
}

// known are the files in or below a folder that stood there at the last look.
func (f *folder) known(dir string) map[string]*file {
	out := map[string]*file{}
	for path, one := range f.files {
		if below(path, dir) && one.state != StateGone && len(one.versions) > 0 {
			out[path] = one
		}
	}
	return out
}

func (f *folder) inForce(dir string) bool { return len(f.known(dir)) > 0 }

// same reports whether every file of the folder has the text that is in force.
func (f *folder) same(dir string, now map[string]reading) bool {
	for path, one := range f.known(dir) {
		if now[path].sum != one.versions[0].Sum {
			return false
		}
	}
	return true
}

func (f *folder) noneLeft(dir string, now map[string]reading) bool {
	for path := range f.known(dir) {
		if _, there := now[path]; there {
			return false
		}
	}
	return true
}

// moved reports whether every object of the folder's files stands in other files.
func (f *folder) moved(dir string, now map[string]reading) bool {
	there := map[string]bool{}
	for _, r := range now {
		if r.contents != nil {
			for _, id := range r.contents.order {
				there[id] = true
			}
		}
	}
	for _, one := range f.known(dir) {
		for _, v := range one.versions {
			if _, left := v.without(there); left || v.contents == nil {
				return false
			}
		}
	}
	return true
}

// take judges every file that stands in the folder, and those that do not any more.
func (l *look) take(next, old *folder, listing Listing, now map[string]reading) {
	for path, r := range now {
		was := old.files[path]
		switch {
		case next.inHeld(path):
			if was != nil {
				next.files[path] = l.held(was)
			}
		case was == nil && next.flat && filepath.Dir(path) != next.path:
			next.waiting = append(next.waiting, path)
		default:
			next.files[path] = l.judge(path, was, r)
		}
	}
	slices.Sort(next.waiting)
	for path, was := range old.files {
		if _, there := now[path]; there {
			continue
		}
		if next.inHeld(path) {
			next.files[path] = l.held(was)
			continue
		}
		if _, err := os.Lstat(path); err == nil || !missing(err) {
			r := l.read(path, was)
			if r.problems == nil {
				r.problems = []Problem{{File: path, Text: "is not read any more; put a file of YAML in its place, or remove it"}}
			}
			next.files[path] = l.judge(path, was, r)
			continue
		}
		next.files[path] = l.state(&file{versions: was.versions}, was, StateGone)
	}
}

// state sets a file's state, which keeps its beginning while it lasts.
func (l *look) state(f, old *file, s State) *file {
	f.state = s
	if s == StateGood {
		return f
	}
	f.since = l.now
	if old != nil && old.state == s {
		f.since = old.since
	}
	return f
}

// held is a file of a folder that changes nothing.
func (l *look) held(was *file) *file {
	f := &file{versions: was.versions}
	return l.state(f, was, lostOr(f, StateHeld))
}

// lostOr is StateLost for a file of which something in force cannot be read.
func lostOr(f *file, s State) State {
	if slices.ContainsFunc(f.versions, func(v version) bool { return v.contents == nil }) {
		return StateLost
	}
	return s
}

// judge says what is in force of a file that has been read.
func (l *look) judge(path string, was *file, r reading) *file {
	f := &file{read: r}
	if was != nil {
		f.versions = was.versions
	}
	first := len(f.versions) == 0
	if r.contents != nil && !first && f.versions[0].count() > 0 && len(r.contents.order) == 0 {
		r.problems = []Problem{{File: path, Text: "holds no object any more; to delete what it held, remove the file"}}
	}
	switch {
	case len(r.problems) > 0:
		f.problems = r.problems
		if l.accept && lostOr(f, "") == StateLost {
			f.versions = filter(f.versions, func(v version) bool { return v.contents != nil })
			first = len(f.versions) == 0
		}
		if first {
			return l.state(f, was, StateNever)
		}
		return l.state(f, was, lostOr(f, StateBroken))
	case !first && f.versions[0].Sum == r.sum && f.versions[0].Only == nil:
		f.versions = slices.Clone(f.versions)
		f.versions[0].contents = r.contents
		return l.state(f, was, StateGood)
	case !first && !l.accept && len(r.contents.order) < f.versions[0].count() && l.now.Sub(r.seen) < fewerAfter:
		l.again(fewerAfter - l.now.Sub(r.seen))
		return l.state(f, was, lostOr(f, StateWaiting))
	}
	v := newVersion(r.text, r.contents)
	v.Sum, v.Good = r.sum, l.now.UTC().Round(0)
	f.versions = append([]version{v}, f.versions...)
	return l.state(f, was, StateGood)
}

// settle drops what is not in force any more: objects that left their file, unless
// they may be in a file that is wrong. A file that went took its objects with it, but
// for those that a wrong file names.
func (l *look) settle(next *folder, meant bool) {
	there := map[string]bool{} // in what stands in the files
	for _, f := range next.files {
		if f.state != StateGone && len(f.versions) > 0 {
			for _, id := range f.versions[0].ids() {
				there[id] = true
			}
		}
	}
	keep := next.broken() && !meant
	for path, f := range next.files {
		first := 1
		if f.state == StateGone {
			first = 0
		}
		if len(f.versions) <= first && f.state != StateGone {
			continue
		}
		kept := slices.Clone(f.versions[:first])
		waits := f.state == StateGone && !meant && l.now.Sub(f.since) < goneAfter
		for _, v := range f.versions[first:] {
			left, ok := v.without(there)
			if ok && f.state == StateGone && keep && !waits { // seen to go: kept only where it may have moved to
				left, ok = left.without(next.nowhere(left.ids()))
			}
			if ok && (keep || waits) {
				kept = append(kept, left)
				for _, id := range left.ids() {
					there[id] = true
				}
			}
		}
		f.versions = kept
		switch {
		case f.state == StateGone && len(kept) == 0:
			delete(next.files, path)
		case waits:
			l.again(goneAfter - l.now.Sub(f.since))
		}
	}
}

// nowhere are those of the objects that are in no file or folder which is wrong: its
// text does not hold their names.
func (f *folder) nowhere(ids []string) map[string]bool {
	out := map[string]bool{}
	for _, id := range ids {
		out[id] = len(f.held) == 0
	}
	for _, one := range f.files {
		switch one.state {
		case StateBroken, StateNever, StateLost:
			for _, id := range ids {
				if one.read.sum == "" || strings.Contains(one.read.text, id[strings.LastIndex(id, "/")+1:]) {
					out[id] = false
				}
			}
		}
	}
	return out
}

// keeps lists the objects that are in force although they left the file.
func (f *file) keeps() []string {
	var out []string
	for i, v := range f.versions {
		if i > 0 || f.state == StateGone {
			out = append(out, v.ids()...)
		}
	}
	slices.Sort(out)
	return out
}

// lastGood is since when the last good version has been in force; zero: there is none.
func (f *file) lastGood() time.Time {
	if len(f.versions) == 0 {
		return time.Time{}
	}
	return f.versions[0].Good
}

// index is the folder as it is kept on disk.
func (f *folder) index() *lastgood.Source {
	out := &lastgood.Source{Dirs: f.dirs, Files: map[string]*lastgood.File{}, Flat: f.flat, Unknown: f.unknown}
	for path, one := range f.files {
		if len(one.versions) > 0 {
			out.Files[path] = indexed(one.versions)
		}
	}
	return out
}

func indexed(vs []version) *lastgood.File {
	out := &lastgood.File{}
	for _, v := range vs {
		out.Versions = append(out.Versions, v.Version)
	}
	return out
}

// command is what says that a folder is meant to be as it is.
func (f *folder) command() string { return fmt.Sprintf("weir source accept %s", f.path) }
