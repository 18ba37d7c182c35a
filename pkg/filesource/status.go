package filesource

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weirnet/weir/pkg/health"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/spell"
)

// FolderStatus is what is known of a source, for people.
type FolderStatus struct {
	Path  string // empty: policies put through the API
	State State
	Since time.Time // of a state that is not good
	Text  string    // what is wrong
	Files []FileStatus
}

// FileStatus is what is known of a file.
type FileStatus struct {
	Path     string
	State    State
	Since    time.Time
	Text     string
	LastGood time.Time // since when the version in force has been; zero: nothing of it is
	Sum      string    // of that version
	Kept     []string  // objects that are in force although they left the file
}

// Sources lists the sources and their files.
func (s *Source) Sources() []FolderStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []FolderStatus
	for _, f := range s.folders {
		out = append(out, s.folderStatus(f))
	}
	if len(s.api) == 0 {
		return out
	}
	api := FolderStatus{State: StateGood}
	for _, id := range slices.Sorted(maps.Keys(s.api)) {
		st := fileStatus(s.store.APIPath(id), s.api[id])
		if st.State != StateGood {
			api.State, api.Since = StateLost, st.Since
		}
		api.Files = append(api.Files, st)
	}
	return append(out, api)
}

func (s *Source) folderStatus(f *folder) FolderStatus {
	out := FolderStatus{Path: f.path, State: StateGood}
	for _, path := range slices.Sorted(maps.Keys(f.files)) {
		st := fileStatus(path, f.files[path])
		if st.State != StateGood {
			out.State = StateBroken
		}
		out.Files = append(out.Files, st)
	}
	for _, path := range f.waiting {
		out.Files = append(out.Files, FileStatus{Path: path, State: StateWaiting, Text: "counts after: " + f.command()})
	}
	for _, dir := range slices.Sorted(maps.Keys(f.held)) {
		t := f.held[dir]
		out.State, out.Since, out.Text = StateHeld, t.since, t.why
	}
	switch {
	case f.missing != "":
		out.State, out.Text = StateNever, f.missing
	case !f.unknown.IsZero():
		out.State, out.Since, out.Text = StateLost, f.unknown, "it is not known what of it had been in force"
	}
	return out
}

func fileStatus(path string, f *file) FileStatus {
	out := FileStatus{Path: path, State: f.state, Since: f.since, LastGood: f.lastGood(), Kept: f.keeps()}
	if len(f.versions) > 0 {
		out.Sum = f.versions[0].Sum
	}
	if len(f.problems) > 0 {
		out.Text = f.problems[0].String()
	}
	for _, v := range f.versions {
		if v.err != nil && out.Text == "" {
			out.Text = v.err.Error()
		}
	}
	return out
}

// Codes of the warnings.
const (
	codeHeld      = "source-held"      // a file or folder is wrong, and what was in force stays
	codeLost      = "source-lost"      // an object in force cannot be read
	codeDuplicate = "source-duplicate" // an object stands in two files
	codeBelow     = "source-below"     // folders below that do not count yet
	codeRecipe    = "source-recipe"    // folders below that are not read
	codeNames     = "unknown-names"    // policies name what is not there
	codeAddress   = "pod-address"      // a Pod object has an address that no pod has
	codeUnkept    = "source-unkept"    // changes cannot be kept
)

// tell makes the warnings from what the last scan found.
func (s *Source) tell() {
	var held, below, recipes, lost, twice, names, foreign, unkept []health.Warning
	for _, f := range s.folders {
		held = append(held, f.warnings()...)
		if n := len(f.waiting); n > 0 {
			below = append(below, health.Warning{Subject: f.path, Breaks: health.BreaksEnforcement, Next: f.command(),
				Text: fmt.Sprintf("%s in folders below %s, which the former agent did not read, do not count yet; the first is %s", spell.Count(n, "file"), f.path, f.waiting[0])})
		}
		for _, r := range f.recipes {
			recipes = append(recipes, health.Warning{Subject: r.Dir, Text: r.Dir + " is not read, because a program makes its objects", Next: "write its objects into a file of the source: " + r.Command + " > FILE.yaml"})
		}
	}
	if list := s.lost.Load(); list != nil {
		for _, l := range *list {
			lost = append(lost, s.lostWarning(l))
		}
	}
	wrong, odd := s.wrong(), map[string][]Problem{}
	for _, p := range s.problems {
		switch {
		case p.Field == fieldPodIPs:
			foreign = append(foreign, health.Warning{Subject: fmt.Sprint(p.File, ":", p.Line, " ", len(foreign)), Breaks: health.BreaksPods, Text: p.String(), Next: "correct the Pod object; weir policy validate " + p.File})
		case p.Warning:
			odd[p.File] = append(odd[p.File], p)
		case !slices.Contains(wrong, p):
			twice = append(twice, health.Warning{Subject: fmt.Sprint(p.File, ":", p.Line), Breaks: health.BreaksEnforcement, Text: p.String(), Next: "weir policy validate " + p.File})
		}
	}
	for _, file := range slices.Sorted(maps.Keys(odd)) {
		names = append(names, health.Warning{Subject: file, Text: andMore(odd[file]), Next: "add what is named, or take its name out; see: weir policy lint " + file})
	}
	if s.unkept != nil {
		unkept = []health.Warning{{Breaks: health.BreaksEnforcement, Text: "changes of the sources cannot be kept on disk, so they are not in force: " + s.unkept.Error(), Next: "make room in, or mend, " + s.cfg.DataDir}}
	}
	before := s.cfg.Warnings.List()
	for _, c := range []struct {
		code string
		ws   []health.Warning
	}{{codeHeld, held}, {codeBelow, below}, {codeRecipe, recipes}, {codeLost, lost}, {codeDuplicate, twice}, {codeNames, names}, {codeAddress, foreign}, {codeUnkept, unkept}} {
		s.cfg.Warnings.Replace(c.code, c.ws...)
		s.log(c.code, before, c.ws)
	}
}

// log writes a line for each warning that is new or says something else.
func (s *Source) log(code string, before, now []health.Warning) {
	for _, w := range now {
		if !slices.ContainsFunc(before, func(b health.Warning) bool { return b.Code == code && b.Subject == w.Subject && b.Text == w.Text }) {
			s.cfg.Logger.Warn("A source needs a hand", "warning", w.Text, "next", w.Next)
		}
	}
}

// warnings are those of a folder and its files.
func (f *folder) warnings() []health.Warning {
	var out []health.Warning
	add := func(subject string, since time.Time, next, text string) {
		out = append(out, health.Warning{Subject: subject, Breaks: health.BreaksEnforcement, Text: text, Next: next, Since: since})
	}
	if f.missing != "" {
		add(f.path, time.Time{}, "make the folder, or mend source-dir", f.missing+"; it never held anything, so nothing of it is in force")
	}
	for _, dir := range slices.Sorted(maps.Keys(f.held)) {
		t := f.held[dir]
		add(dir, t.since, "bring it back; if it is meant to be as it is: "+f.command(),
			fmt.Sprintf("%s since %s; nothing of it changes: %s that it held stay in force", t.why, clock(t.since), spell.Count(len(f.known(dir)), "file")))
	}
	for _, path := range slices.Sorted(maps.Keys(f.files)) {
		one := f.files[path]
		switch kept := one.keeps(); {
		case one.state == StateBroken || one.state == StateLost && len(one.problems) > 0:
			add(path, one.since, "weir policy validate "+path, fmt.Sprintf("%s; since %s the last good version of the file, of %s, stays in force", andMore(one.problems), clock(one.since), clock(one.lastGood())))
		case one.state == StateNever:
			add(path, one.since, "weir policy validate "+path, andMore(one.problems)+"; no version of the file was good yet, so that nothing of it is in force")
		case len(kept) > 0 && (one.state == StateGood || one.state == StateGone && f.broken()):
			add(path, one.since, "mend the others; if they are meant to go: "+f.command(),
				fmt.Sprintf("objects left %s and stay in force, because they may be in a file or folder that cannot be read: %s", path, firstOf(kept)))
		}
	}
	return out
}

// andMore prints the first problem and how many more there are.
func andMore(ps []Problem) string {
	if len(ps) < 2 {
		return ps[0].String()
	}
	return fmt.Sprintf("%s (and %d more)", ps[0], len(ps)-1)
}

// firstOf lists a few of many.
func firstOf(list []string) string {
	if len(list) > 5 {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:5], ", "), len(list)-5)
	}
	return strings.Join(list, ", ")
}

func (s *Source) lostWarning(l Lost) health.Warning {
	w := health.Warning{Subject: l.Object, Breaks: health.BreaksEnforcement, Since: l.Since}
	pods := "no pod here"
	if s.cfg.Pods != nil {
		if list := s.cfg.Pods(func(ls labels.LabelArray) bool { return l.selects(ls) }); len(list) > 0 {
			pods = firstOf(list)
		}
	}
	w.Text = fmt.Sprintf("%s; the pods that it may select keep their policy, and new ones are refused: %s", l, pods)
	w.Next = "mend " + l.File + "; once the folder holds what is meant to be in force: weir source accept " + l.Source
	if l.Source == "" {
		w.Next = "put it again: weir policy apply FILE; or: weir policy delete " + l.Object
	}
	return w
}
