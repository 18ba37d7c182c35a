package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestKernelTestsAreFoundThroughFunctionsOfTheirPackage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x_test.go")
	text := `package x
func TestDirect(t *testing.T)  { testutils.Kernel(t) }
func open(t testing.TB) *Map   { return openAt(testutils.Kernel(t).BPFRoot) }
func TestThrough(t *testing.T) { open(t) }
func (f fixture) up()          { open(f.t) }
func TestMethod(t *testing.T)  { fixture{t}.up() }
func TestPure(t *testing.T)    { other.Kernel(t) }
func BenchmarkIt(b *testing.B) { open(b) }
func TestMain(m *testing.M)    { open(nil) }
`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	g := callGraph{}
	if err := g.add(path); err != nil {
		t.Fatal(err)
	}
	got := g.tests()
	slices.Sort(got)
	if want := []string{"TestDirect", "TestMethod", "TestThrough"}; !slices.Equal(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
}

func TestALeftOutKernelTestIsAFailure(t *testing.T) {
	ok := &results{outcome: map[string]string{"p.TestA": "pass", "p.TestB": "pass"}}
	if err := report(ok, []string{"p.TestA"}, nil); err != nil {
		t.Error(err)
	}
	for name, r := range map[string]*results{
		"skipped": {outcome: map[string]string{"p.TestA": "skip", "p.TestB": "pass"}},
		"not run": {outcome: map[string]string{"p.TestB": "pass"}},
		"failed":  {outcome: map[string]string{"p.TestA": "fail", "p.TestB": "pass"}},
		"nothing": {outcome: map[string]string{}},
	} {
		if err := report(r, []string{"p.TestA"}, nil); err == nil {
			t.Errorf("%s: no failure", name)
		}
	}
}
