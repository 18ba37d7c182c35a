package cmd

import (
	"errors"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
)

// FuzzParseArgs reads CNI_ARGS: an error has the code of the CNI spec, also one of
// the addresses that are asked for.
func FuzzParseArgs(f *testing.F) {
	for _, s := range []string{"IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_UID=u;COLOUR=red", "K8S_POD_NAME", "K8S_POD_NAME=a", ";", "=", "IgnoreUnknown=x", "IgnoreUnknown=1;IP=10.0.0.1/24;MAC=02:00:00:00:00:01", "IP=x"} {
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
		err = (&NetConf{}).wish(a)
		var e *types.Error
		if err != nil && (!errors.As(err, &e) || e.Code != types.ErrInvalidEnvironmentVariables) {
			t.Fatalf("%q: %v has no code", s, err)
		}
	})
}
