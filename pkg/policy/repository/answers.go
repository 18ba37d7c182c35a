package repository

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/policy"
)

// answers keeps the answers of the newest revision that one was asked for. Those
// of older ones are never wanted again.
type answers struct {
	mu       sync.Mutex
	revision uint64
	byKey    map[string]Resolved
}

func subjectKey(s policy.Subject) string {
	ports := make([]string, 0, len(s.NamedPorts))
	for name, number := range s.NamedPorts {
		ports = append(ports, fmt.Sprintf("%s=%d", name, number))
	}
	slices.Sort(ports)
	return fmt.Sprintf("%d %s %s %s", s.Identity, s.Enforcement, s.Labels.Key(), strings.Join(ports, " "))
}

// get returns an answer for the revision or a newer one.
func (a *answers) get(key string, revision uint64) (answer Resolved, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.revision < revision {
		return Resolved{}, false
	}
	answer, ok = a.byKey[key]
	return answer, ok
}

func (a *answers) put(key string, answer Resolved) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if answer.Revision > a.revision || a.byKey == nil {
		a.revision, a.byKey = answer.Revision, map[string]Resolved{}
	}
	if answer.Revision == a.revision {
		a.byKey[key] = answer
	}
}

// forget drops the answers of identities that went.
func (a *answers) forget(removed identity.IdentityMap) {
	if len(removed) == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for key, answer := range a.byKey {
		if _, gone := removed[answer.Policy.Subject.Identity]; gone {
			delete(a.byKey, key)
		}
	}
}
