package endpoint

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/weirnet/weir/pkg/atomicfile"
	policytypes "github.com/weirnet/weir/pkg/policy/types"
)

// maxKept is how many pods' settings are kept; those set longest ago go first.
const maxKept = 4096

// SettingsBook keeps the settings of pods on a disk that outlives a reboot: a pod
// that comes again, with the same UID, has them from its first packet. Safe for
// concurrent use.
type SettingsBook struct {
	path string

	mu   sync.Mutex
	pods map[string]keptSettings // by namespace/name
}

// keptSettings is one pod in the file.
type keptSettings struct {
	Namespace   string                  `json:"namespace"`
	Name        string                  `json:"name"`
	UID         string                  `json:"uid,omitempty"`
	Audit       bool                    `json:"audit,omitempty"`
	Enforcement policytypes.Enforcement `json:"enforcement,omitempty"`
	Since       time.Time               `json:"since"`
}

type settingsFile struct {
	Version int            `json:"version"`
	Pods    []keptSettings `json:"pods"`
}

// OpenSettings reads the book in a directory. One that cannot be used is set aside;
// records of this boot make it again.
func OpenSettings(dir string) (*SettingsBook, *atomicfile.Damage, error) {
	b := &SettingsBook{path: filepath.Join(dir, "endpoints.json"), pods: map[string]keptSettings{}}
	if err := atomicfile.Dir(dir, 0o750); err != nil {
		return nil, nil, fmt.Errorf("directory of settings: %w", err)
	}
	damage := atomicfile.Load(b.path, func(text []byte) error {
		var f settingsFile
		if err := json.Unmarshal(text, &f); err != nil {
			return err
		}
		if f.Version < 1 {
			return errors.New("it has no version")
		}
		for _, k := range f.Pods {
			b.pods[k.Namespace+"/"+k.Name] = k
		}
		return nil
	})
	return b, damage, nil
}

// Of returns what was set of a pod; false: nothing.
func (b *SettingsBook) Of(p Pod) (Settings, bool) {
	if b == nil {
		return Settings{}, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	k, ok := b.pods[p.String()]
	if !ok || !p.Known() || k.UID != p.UID {
		return Settings{}, false
	}
	return Settings{k.Audit, k.Enforcement}, true
}

// Keep writes what is set of a pod; the settings of everybody are not kept, nor is
// anything of a pod without a name. After an error the file is as it was.
func (b *SettingsBook) Keep(p Pod, s Settings) error {
	if b == nil || !p.Known() {
		return nil
	}
	if old, ok := b.Of(p); ok && old == s || !ok && s == (Settings{}) {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	before, had := b.pods[p.String()]
	b.pods[p.String()] = keptSettings{p.Namespace, p.Name, p.UID, s.Audit, s.Enforcement, time.Now().UTC()}
	if s == (Settings{}) {
		delete(b.pods, p.String())
	}
	if err := b.write(); err != nil {
		if delete(b.pods, p.String()); had {
			b.pods[p.String()] = before
		}
		return fmt.Errorf("keeping the settings of pod %s: %w; check the data directory", p, err)
	}
	return nil
}

// write replaces the file. b.mu is held.
func (b *SettingsBook) write() error {
	f := settingsFile{Version: 1, Pods: make([]keptSettings, 0, len(b.pods))}
	for _, k := range b.pods {
		f.Pods = append(f.Pods, k)
	}
	slices.SortFunc(f.Pods, func(x, y keptSettings) int {
		return cmp.Or(y.Since.Compare(x.Since), cmp.Compare(x.Namespace+"/"+x.Name, y.Namespace+"/"+y.Name))
	})
	for len(f.Pods) > maxKept {
		last := f.Pods[len(f.Pods)-1]
		delete(b.pods, last.Namespace+"/"+last.Name)
		f.Pods = f.Pods[:len(f.Pods)-1]
	}
	text, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.WriteSync(b.path, append(text, '\n'), 0o600)
}
