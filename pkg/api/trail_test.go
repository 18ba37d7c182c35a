package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/policy/types"
)

func TestN52AChangeIsLoggedWithThePeerOfTheSocket(t *testing.T) {
	s := startServer(t, Sources{Status: &fakeStatus{}, Editor: &fakeEditor{}, IPAM: &fakeIPAM{allocate: func(context.Context, LeaseRequest) (gen.Lease, error) {
		return gen.Lease{Ipv4: "10.0.0.1"}, nil
	}}}, nil)
	for _, c := range [][3]string{
		{"PUT", "/v1/policy?file=web.yaml", "kind: X\n"},
		{"DELETE", "/v1/policy/NetworkPolicy/x/web", ""},
		{"POST", "/v1/ipam", `{"owner":"c1:eth0"}`},
		{"POST", "/v1/policy/validate", "kind: X\n"},
		{"GET", "/v1/healthz", ""},
	} {
		s.ask(c[0], c[1], strings.NewReader(c[2]))
	}
	s.stop()
	require.NoError(t, <-s.ended)
	var lines []string
	for _, l := range strings.Split(s.logs.String(), "\n") {
		if strings.Contains(l, "msg=Change") {
			lines = append(lines, l)
		}
	}
	require.Len(t, lines, 3, "one line a change, none for what only reads")
	who := fmt.Sprintf(`level=INFO msg=Change who="uid %d" pid=%d action=`, os.Getuid(), os.Getpid())
	for i, want := range []string{`"policy apply" what=`, `"policy delete" what="NetworkPolicy x/web" revision=`, `"address lease" what=`} {
		require.Contains(t, lines[i], who+want)
	}
	require.Contains(t, lines[2], "for c1:eth0")
}

func TestN52EveryChangeSaysWhatAndTheRevision(t *testing.T) {
	on := true
	body := &gen.EndpointSettings{Audit: &on, Enforcement: gen.EnforcementNever}
	e := gen.Endpoint{ID: 5, Pod: gen.PodRef{Namespace: "x", Name: "web"}, Addressing: gen.Addressing{Ipv4: "10.0.0.1"}, Policy: gen.EndpointPolicy{Revision: 9}}
	file, iface := "web.yaml", "eth0"
	policies := gen.PolicyChange{Revision: 9, Policies: []gen.PolicyRef{{Kind: "NetworkPolicy", Namespace: "x", Name: "a"}, {Kind: "ClusterNetworkPolicy", Name: "b"}}}
	many := gen.PolicyChange{Revision: 9}
	for i := range 12 {
		many.Policies = append(many.Policies, gen.PolicyRef{Kind: "K", Namespace: "x", Name: fmt.Sprint(i)})
	}
	for _, c := range []struct {
		operation       string
		request, answer any
		err             error
		want            string // empty: no line
	}{
		{"PutPolicy", gen.PutPolicyRequestObject{Params: gen.PutPolicyParams{File: &file}}, gen.PutPolicy200JSONResponse(policies), nil,
			`action="policy apply" what="NetworkPolicy x/a, ClusterNetworkPolicy b" revision=9`},
		{"PutPolicy", gen.PutPolicyRequestObject{Params: gen.PutPolicyParams{File: &file}}, gen.PutPolicy200JSONResponse(many), nil, `K x/9 and 2 more" revision=9`},
		{"PutPolicy", gen.PutPolicyRequestObject{Params: gen.PutPolicyParams{File: &file}}, nil, errors.New("not in force everywhere"),
			`action="policy apply" what="the objects of web.yaml" error="not in force everywhere"`},
		{"DeletePolicy", gen.DeletePolicyRequestObject{Kind: "ClusterNetworkPolicy", Namespace: "-", Name: "b"}, nil, errors.New("no such policy"),
			`action="policy delete" what="ClusterNetworkPolicy b" error="no such policy"`},
		{"PatchEndpoint", gen.PatchEndpointRequestObject{ID: "pod-name:x/web", Body: body}, gen.PatchEndpoint200JSONResponse(e), nil,
			`action="endpoint settings" what="endpoint 5 (x/web): audit on, enforcement never" revision=9`},
		{"PatchEndpoint", gen.PatchEndpointRequestObject{ID: "pod-name:x/web", Body: body}, nil, errors.New("taken back"),
			`what="endpoint pod-name:x/web: audit on, enforcement never" error="taken back"`},
		{"PutEndpoint", gen.PutEndpointRequestObject{ID: "cni-attachment-id:c:eth0"}, gen.PutEndpoint201JSONResponse(e), nil,
			`action="endpoint create" what="endpoint 5 (x/web) 10.0.0.1" revision=9`},
		{"PutEndpoint", gen.PutEndpointRequestObject{ID: "cni-attachment-id:c:eth0"}, gen.PutEndpoint200JSONResponse(e), nil, ""},
		{"DeleteEndpoint", gen.DeleteEndpointRequestObject{ID: "5"}, gen.DeleteEndpoint200JSONResponse{Deleted: 1, Errors: 1, Texts: []string{"route"}}, nil,
			`action="endpoint delete" what="endpoint 5: 1 endpoint" error="not removed completely: route"`},
		{"DeleteEndpoints", gen.DeleteEndpointsRequestObject{Params: gen.DeleteEndpointsParams{ContainerID: "c", Interface: &iface}}, gen.DeleteEndpoints200JSONResponse{}, nil,
			`action="endpoint delete" what="container c eth0: 0 endpoints"`},
		{"PostIPAM", gen.PostIPAMRequestObject{Body: &gen.IPAMRequest{Owner: "c:eth0"}}, gen.PostIPAM201JSONResponse{Ipv4: "10.0.0.1"}, nil, `action="address lease" what="10.0.0.1 for c:eth0"`},
		{"DeleteIPAM", gen.DeleteIPAMRequestObject{IP: "10.0.0.1"}, gen.DeleteIPAM204Response{}, nil, `action="address release" what=10.0.0.1`},
		{"FutureOperation", struct{}{}, nil, nil, `action=FutureOperation what="POST /v1/any"`},
		{"ValidatePolicy", gen.ValidatePolicyRequestObject{}, nil, nil, ""},
	} {
		var log bytes.Buffer
		next := func(context.Context, http.ResponseWriter, *http.Request, any) (any, error) { return c.answer, c.err }
		answer, err := NewTrail(slog.New(slog.NewTextHandler(&log, nil))).follow(next, c.operation)(t.Context(), nil, httptest.NewRequest("POST", "/v1/any", nil), c.request)
		require.Equal(t, c.answer, answer)
		require.Equal(t, c.err, err)
		if c.want == "" {
			require.Empty(t, log.String(), c.operation)
			continue
		}
		require.Contains(t, log.String(), c.want)
		require.Equal(t, 1, strings.Count(log.String(), "\n"))
	}
}

// lateEditor keeps a change that is not in force in time.
type lateEditor struct{ fakeEditor }

func (f *lateEditor) Apply(context.Context, string, []byte) (PolicyChange, error) {
	return PolicyChange{Revision: 12, Resources: []types.Resource{{Kind: "NetworkPolicy", Namespace: "x", Name: "late"}}}, errors.New("not in force everywhere yet")
}

func TestN52AChangeThatIsKeptButLateIsToldWithItsObjects(t *testing.T) {
	s := startServer(t, Sources{Editor: &lateEditor{}}, nil)
	s.ask("PUT", "/v1/policy?file=web.yaml", strings.NewReader("kind: X\n"))
	s.stop()
	require.NoError(t, <-s.ended)
	require.Contains(t, s.logs.String(), `action="policy apply" what="NetworkPolicy x/late" revision=12 error=`)
}
