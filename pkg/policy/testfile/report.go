package testfile

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"
)

// Suite is a test that was run.
type Suite struct {
	Name  string // of the test
	Path  string // of its file
	Cases []Case
	Took  time.Duration
}

// Case is one thing that was tested.
type Case struct {
	Name    string
	Place   string // file:line, or what else helps to find it
	Problem string // one line; empty: passed
	Detail  string // of a problem: everything that is known
	Broken  bool   // of a problem: it could not be asked
}

// Broken is a suite that could not be run.
func Broken(name, path string, err error) Suite {
	first, _, _ := strings.Cut(err.Error(), "\n")
	return Suite{Name: name, Path: path, Cases: []Case{{Name: "the test can be run", Place: path, Problem: first, Detail: err.Error(), Broken: true}}}
}

// Report is everything that was run.
type Report struct {
	Suites  []Suite
	Started time.Time
	Host    string // where it ran
}

// Count returns how many cases passed and failed.
func (r Report) Count() (passed, failed int) {
	for _, s := range r.Suites {
		p, f := s.Count()
		passed, failed = passed+p, failed+f
	}
	return passed, failed
}

// Count returns how many cases passed and failed.
func (s Suite) Count() (passed, failed int) {
	for _, c := range s.Cases {
		if c.Problem == "" {
			passed++
		} else {
			failed++
		}
	}
	return passed, failed
}

// Detail says what is wrong, with the whole explanation of every family.
func (a Asked) Detail() string {
	var b strings.Builder
	fmt.Fprintln(&b, a.Problem)
	for i, answer := range a.Answers {
		text := answer.Explanation.String()
		if i > 0 && text == a.Answers[i-1].Explanation.String() {
			continue
		}
		b.WriteString(text)
	}
	return strings.TrimRight(b.String(), "\n")
}

// Case is the expectation in a report.
func (a Asked) Case(path string) Case {
	c := Case{Name: a.Name(), Place: fmt.Sprintf("%s:%d", path, a.Line), Problem: a.Problem, Broken: len(a.Answers) == 0}
	if !a.Passed() {
		c.Detail = a.Detail()
	}
	return c
}

// TAP prints the report as a stream of the Test Anything Protocol, version 13.
func (r Report) TAP(w io.Writer) error {
	passed, failed := r.Count()
	var b strings.Builder
	fmt.Fprintf(&b, "TAP version 13\n1..%d\n", passed+failed)
	n := 0
	for _, s := range r.Suites {
		for _, c := range s.Cases {
			n++
			result := "ok"
			if c.Problem != "" {
				result = "not ok"
			}
			fmt.Fprintf(&b, "%s %d - %s\n", result, n, tapText(s.Name+": "+c.Name))
			if c.Problem == "" {
				continue
			}
			fmt.Fprintf(&b, "  ---\n  at: %q\n  message: |\n", c.Place)
			for line := range strings.SplitSeq(c.Detail, "\n") {
				fmt.Fprintf(&b, "    %s\n", line)
			}
			b.WriteString("  ...\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// tapText keeps a description to one line and free of directives.
func tapText(s string) string {
	return strings.NewReplacer("#", "\\#", "\n", " ", "\r", " ").Replace(s)
}

// The elements of JUnit's XML.
type (
	junitSuites struct {
		XMLName xml.Name     `xml:"testsuites"`
		Suites  []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		ID         int         `xml:"id,attr"`
		Name       string      `xml:"name,attr"`
		Package    string      `xml:"package,attr"`
		Timestamp  string      `xml:"timestamp,attr"`
		Hostname   string      `xml:"hostname,attr"`
		Tests      int         `xml:"tests,attr"`
		Failures   int         `xml:"failures,attr"`
		Errors     int         `xml:"errors,attr"`
		Time       string      `xml:"time,attr"`
		Properties struct{}    `xml:"properties"`
		Cases      []junitCase `xml:"testcase"`
		SystemOut  string      `xml:"system-out"`
		SystemErr  string      `xml:"system-err"`
	}
	junitCase struct {
		Name    string        `xml:"name,attr"`
		Class   string        `xml:"classname,attr"`
		Time    string        `xml:"time,attr"`
		Failure *junitFailure `xml:"failure"`
		Error   *junitFailure `xml:"error"`
	}
	junitFailure struct {
		Message string `xml:"message,attr"`
		Type    string `xml:"type,attr"`
		Text    string `xml:",chardata"`
	}
)

// JUnit prints the report as XML that common readers of JUnit's format take. An
// expectation that is not met is a failure, one that could not be asked an error.
func (r Report) JUnit(w io.Writer) error {
	var out junitSuites
	for i, s := range r.Suites {
		js := junitSuite{ID: i, Name: xmlText(s.Name), Package: xmlText(s.Path), Timestamp: r.Started.UTC().Format("2006-01-02T15:04:05"),
			Hostname: xmlText(r.Host), Tests: len(s.Cases), Time: fmt.Sprintf("%.3f", s.Took.Seconds())}
		each := fmt.Sprintf("%.3f", s.Took.Seconds()/float64(max(len(s.Cases), 1)))
		for _, c := range s.Cases {
			jc := junitCase{Name: xmlText(c.Name), Class: xmlText(s.Name), Time: each}
			what := &junitFailure{Message: xmlText(c.Problem), Type: "verdict", Text: xmlText(c.Place + "\n" + c.Detail)}
			switch {
			case c.Problem == "":
			case c.Broken:
				what.Type, jc.Error = "error", what
				js.Errors++
			default:
				jc.Failure = what
				js.Failures++
			}
			js.Cases = append(js.Cases, jc)
		}
		out.Suites = append(out.Suites, js)
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	enc := xml.NewEncoder(w)
	enc.Indent("", "  ")
	if err := enc.Encode(out); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}

// xmlText drops characters that XML 1.0 has no way to write.
func xmlText(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && unicode.IsControl(r) {
			return -1
		}
		return r
	}, s)
}
