package cases

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"fmt"

	"github.com/weirnet/weir/pkg/policy/casefile"
)

//go:embed policy-cases.json.gz
var compressed []byte

// The suites.
const (
	SuiteCyclonus    = "cyclonus"                 // NetworkPolicy
	SuiteGenNP       = "gen-np"                   // NetworkPolicy, both families, label churn
	SuiteGenCilium   = "gen-cilium"               // the two kinds of cilium.io
	SuiteHandCilium  = "hand-cilium"              // the same, edge cases
	SuiteGenCNP      = "gen-cnp"                  // ClusterNetworkPolicy with NetworkPolicy
	SuiteConformance = "cnp-conformance-policies" // ClusterNetworkPolicy, those of its own conformance tests
)

// Set is all cases.
type Set struct{ *casefile.Set }

// Load reads all cases.
func Load() (*Set, error) {
	z, err := gzip.NewReader(bytes.NewReader(compressed))
	if err != nil {
		return nil, fmt.Errorf("read the policy cases: %w", err)
	}
	s, err := casefile.Read(z)
	if err != nil {
		return nil, err
	}
	return &Set{s}, nil
}
