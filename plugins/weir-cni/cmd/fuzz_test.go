package cmd

import (
	"errors"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
)

// FuzzParseArgs reads CNI_ARGS: an error has the code of the CNI spec, and a pod
// has a namespace and a name or neither.
func FuzzParseArgs(f *testing.F) {
	for _, s := range []string{"IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_UID=u;COLOUR=red", "K8S_POD_NAME", "K8S_POD_NAME=a", ";", "=", "IgnoreUnknown=x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := parseArgs(s)
		if err != nil {
			var e *types.Error
			if !errors.As(err, &e) || e.Code != types.ErrInvalidEnvironmentVariables {
				t.Fatalf("%q: %v has no code", s, err)
			}
			return
		}
		if p := a.podRef(); (p.Name == "") != (p.Namespace == "") {
			t.Fatalf("%q is the pod %+v", s, p)
		}
	})
}
