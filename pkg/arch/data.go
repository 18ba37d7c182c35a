package arch

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Floors is the data that the rules are checked against.
type Floors struct {
	Floor    map[string]int       // package path below the module ("pkg/labels") to floor 0..5
	Sideways map[[2]string]string // importer and imported package to the reason
	Modules  []ModuleRule
}

// ModuleRule allows a third-party module, or the packages below a path of it,
// from some floors up, or in one package only.
type ModuleRule struct {
	Path string // import path prefix
	From int    // lowest floor that may import it
	To   int    // highest floor
	Only string // package below the module that alone may import it; empty: all of the floors
	Test bool   // for test files alone
}

// ReadFloors reads floors.txt, sideways.txt and modules.txt from a folder. A
// missing sideways.txt or modules.txt counts as empty.
func ReadFloors(dir string) (*Floors, error) {
	f := &Floors{Floor: map[string]int{}, Sideways: map[[2]string]string{}}
	err := eachLine(dir+"/floors.txt", func(words []string) error {
		if len(words) != 2 {
			return fmt.Errorf("want: floor package")
		}
		n, err := strconv.Atoi(words[0])
		if err != nil || n < 0 || n > 5 {
			return fmt.Errorf("floor %q is not a number from 0 to 5", words[0])
		}
		if _, twice := f.Floor[words[1]]; twice {
			return fmt.Errorf("package %s is listed twice", words[1])
		}
		f.Floor[words[1]] = n
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = eachLine(dir+"/sideways.txt", func(words []string) error {
		if len(words) < 3 {
			return fmt.Errorf("want: importer imported reason")
		}
		f.Sideways[[2]string{words[0], words[1]}] = strings.Join(words[2:], " ")
		return nil
	})
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	err = eachLine(dir+"/modules.txt", func(words []string) error {
		m, err := parseModule(words)
		f.Modules = append(f.Modules, m)
		return err
	})
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	return f, nil
}

// parseModule reads "FLOORS PATH", where FLOORS is "3", "2-5", "test" or a package.
func parseModule(words []string) (ModuleRule, error) {
	if len(words) != 2 {
		return ModuleRule{}, fmt.Errorf("want: floors path")
	}
	m := ModuleRule{Path: words[1]}
	if words[0] == "test" {
		m.Test, m.To = true, 5
		return m, nil
	}
	from, to, ranged := strings.Cut(words[0], "-")
	if !ranged {
		to = from
	}
	var err1, err2 error
	m.From, err1 = strconv.Atoi(from)
	m.To, err2 = strconv.Atoi(to)
	if err1 != nil || err2 != nil {
		m.Only, m.From, m.To = words[0], 0, 5
	}
	return m, nil
}

// eachLine calls fn with the words of every line that is not blank or a comment.
func eachLine(path string, fn func(words []string) error) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	sc := bufio.NewScanner(file)
	for n := 1; sc.Scan(); n++ {
		line, _, _ := strings.Cut(sc.Text(), "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if err := fn(words); err != nil {
			return fmt.Errorf("%s:%d: %w", path, n, err)
		}
	}
	return sc.Err()
}
