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
	Name    string // of the test
	Path    string // of its file
	Asked   []Asked
	Took    time.Duration
	Problem string // why it could not be run; then nothing was asked
}

// Report is everything that was run.
type Report struct {
	Suites  []Suite
	Started time.Time
	Host    string // where it ran
}

// Count returns how many expectations passed and failed. A suite that could not
// be run counts as one that failed.
func (r Report) Count() (passed, failed int) {
	for _, s := range r.Suites {
		p, f := s.count()
		passed, failed = passed+p, failed+f
	}
	return passed, failed
}

func (s Suite) count() (passed, failed int) {
	for _, a := range s.Asked {
		if a.Passed() {
			passed++
		} else {
			failed++
		}
	}
	if s.Problem != "" {
		failed++
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

// cases lists what a suite did, as JUnit and TAP count it: name, place, detail of a failure.
func (s Suite) cases() [][3]string {
	var out [][3]string
	if s.Problem != "" {
		out = append(out, [3]string{"the test can be run", s.Path, s.Problem})
	}
	for _, a := range s.Asked {
		detail := ""
		if !a.Passed() {
			detail = a.Detail()
		}
		out = append(out, [3]string{a.Name(), fmt.Sprintf("%s:%d", s.Path, a.Line), detail})
	}
	return out
}

// TAP prints the report as a stream of the Test Anything Protocol, version 13.
func (r Report) TAP(w io.Writer) error {
	passed, failed := r.Count()
	var b strings.Builder
	fmt.Fprintf(&b, "TAP version 13\n1..%d\n", passed+failed)
	n := 0
	for _, s := range r.Suites {
		for _, c := range s.cases() {
			n++
			result := "ok"
			if c[2] != "" {
				result = "not ok"
			}
			fmt.Fprintf(&b, "%s %d - %s\n", result, n, tapText(s.Name+": "+c[0]))
			if c[2] == "" {
				continue
			}
			fmt.Fprintf(&b, "  ---\n  at: %q\n  message: |\n", c[1])
			for line := range strings.SplitSeq(c[2], "\n") {
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
		passed, failed := s.count()
		js := junitSuite{ID: i, Name: xmlText(s.Name), Package: xmlText(s.Path), Timestamp: r.Started.UTC().Format("2006-01-02T15:04:05"), Hostname: xmlText(r.Host),
			Tests: passed + failed, Time: fmt.Sprintf("%.3f", s.Took.Seconds())}
		each := s.Took.Seconds() / float64(max(passed+failed, 1))
		for _, c := range s.cases() {
			js.Cases = append(js.Cases, junitCase{Name: xmlText(c[0]), Class: xmlText(s.Name), Time: fmt.Sprintf("%.3f", each)})
		}
		if s.Problem != "" {
			js.Cases[0].Error = &junitFailure{xmlText(s.Problem), "error", xmlText(s.Path)}
			js.Errors++
		}
		asked := js.Cases[len(js.Cases)-len(s.Asked):]
		for k, a := range s.Asked {
			what := &junitFailure{Message: xmlText(a.Problem), Type: "verdict", Text: xmlText(fmt.Sprintf("%s:%d\n%s", s.Path, a.Line, a.Detail()))}
			switch {
			case a.Passed():
			case len(a.Answers) == 0:
				what.Type = "error"
				asked[k].Error = what
				js.Errors++
			default:
				asked[k].Failure = what
				js.Failures++
			}
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
