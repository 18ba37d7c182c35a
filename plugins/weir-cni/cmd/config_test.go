package cmd

import (
	"bytes"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"

	v1 "github.com/weirnet/weir/api/v1"
	"github.com/weirnet/weir/pkg/endpoint/regeneration"
)

func TestConfigDefaultsAndWhatRuntimesAdd(t *testing.T) {
	c, err := parseConfig([]byte(`{"cniVersion":"1.1.0","name":"n","type":"weir-cni","dns":{},"ipam":{},"prevResult":null,
		"runtimeConfig":{"ips":["10.0.0.7/16","fd00::7"],"portMappings":[]},"cni.dev/attachments":[],"somebodyElses":{"key":1}}`))
	require.NoError(t, err)
	require.Equal(t, "/var/run/weir/weir.sock", c.Socket)
	require.Len(t, c.requested, 2)
	require.False(t, c.hasPrevResult())
	require.Equal(t, defaultTimeout, c.timeout())
	c, err = parseConfig([]byte(`{"runDir":"/run/lab-1","ipam":null}`))
	require.NoError(t, err)
	require.Equal(t, "/run/lab-1/weir.sock", c.Socket)
}

func TestLabelsConvention(t *testing.T) {
	read := func(labels string) (*NetConf, error) {
		return parseConfig([]byte(`{"args":{"cni":{"labels":` + labels + `}}}`))
	}
	for _, form := range []string{`[{"key":"app","value":"web"},{"key":"empty"}]`, `{"app":"web","empty":""}`} {
		c, err := read(form)
		require.NoError(t, err, form)
		require.Equal(t, labelList{"app": "web", "empty": ""}, c.Args.CNI.Labels, form)
	}
	for form, want := range map[string]string{`"app=web"`: "list of objects", `[{"value":"x"}]`: "labels[0].key", `[{"key":"a"},{"key":"a"}]`: "given twice"} {
		_, err := read(form)
		require.ErrorContains(t, err, want, form)
	}
}

func TestParseArgsKeepsThePodAndIgnoresWhatItIsToldTo(t *testing.T) {
	a, err := parseArgs("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_UID=u;K8S_POD_INFRA_CONTAINER_ID=i;COLOUR=red")
	require.NoError(t, err)
	require.Equal(t, "web", a.podRef().Name)
	require.Equal(t, "i", string(a.K8S_POD_INFRA_CONTAINER_ID))
	a, err = parseArgs("")
	require.NoError(t, err)
	require.Empty(t, a.podRef())
	_, err = parseArgs("K8S_POD_NAME")
	require.Error(t, err)
}

func FuzzParseConfig(f *testing.F) {
	for _, s := range []string{`{}`, `{"mtu":1}`, `{"args":{"cni":{"labels":[]}}}`, `{"ipam":[]}`, `{"runtimeConfig":{"ips":["::1%lo"]}}`, `[`, `null`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		c, err := parseConfig(in)
		if err != nil {
			var e *types.Error
			if !errors.As(err, &e) || e.Code == 0 {
				t.Fatalf("%q: %v has no CNI code", in, err)
			}
			return
		}
		if !filepath.IsAbs(c.Socket) || c.MTU < 0 || c.timeout() <= 0 {
			t.Fatalf("%q was taken: %+v", in, c)
		}
	})
}

func TestErrorsTellARuntimeWhetherToTryAgain(t *testing.T) {
	for code, want := range map[v1.Code]uint{
		v1.CodeUnreachable: types.ErrTryAgainLater, v1.CodeNotReady: types.ErrTryAgainLater, v1.CodeTimeout: types.ErrTryAgainLater,
		v1.CodeExhausted: types.ErrTryAgainLater, v1.CodeConflict: types.ErrInternal, v1.CodeVersion: types.ErrInternal, v1.CodePermission: types.ErrInternal,
	} {
		err := cniError(at(regeneration.StationIPAMLease, v1.Errorf(code, "do this", "it failed")))
		var e *types.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, want, e.Code, string(code))
		require.Equal(t, "station ipam.lease: it failed", e.Msg)
		require.Equal(t, "do this", e.Details)
	}
}

func TestAnUnusableLogFileDoesNotStopThePlugin(t *testing.T) {
	var stderr bytes.Buffer
	log, done := openLog(&NetConf{LogFile: "/proc/self/status/x.log"}, &stderr)
	defer done()
	log.LogAttrs(t.Context(), slog.LevelInfo, "still here")
	require.Contains(t, stderr.String(), "cannot be opened")
	require.Contains(t, stderr.String(), "still here")
}
