package format

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFormat(t *testing.T) {
	for _, tt := range []struct{ name, in, want string }{
		{"fields come in order, whatever is unknown last", `
kind: NetworkPolicy
spec:
    more: 1
    egress: []
    policyTypes: [Egress]
    podSelector: {matchLabels: {b: "x", a: 'y'}}
metadata: {namespace: shop, name: web}
apiVersion: networking.k8s.io/v1
`, `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: web
  namespace: shop
spec:
  podSelector:
    matchLabels:
      b: x
      a: 'y'
  policyTypes: [Egress]
  egress: []
  more: 1
`},
		{"comments stay with what they are about", `# head
# of the file

# of the kind
kind: NetworkPolicy # line
apiVersion: networking.k8s.io/v1
spec:
  # of ingress
  ingress:
  # of the first
  - ports: [{port: 80}] # of ports
    to:
    - {ipBlock: {}} # of a peer
    from: []
  # of the second
  - {}
  podSelector: {} # everybody
# at the end
`, `# head
# of the file

apiVersion: networking.k8s.io/v1
# of the kind
kind: NetworkPolicy # line
spec:
  podSelector: {} # everybody
  # of ingress
  ingress:
    # of the first
    - from: []
      to:
        # of a peer
        - ipBlock: {}
      # of ports
      ports:
        - port: 80
    # of the second
    - {}
# at the end
`},
		{"quotes stay where they mean something", `kind: Policy
spec: {values: ["yes", "1", "on", 'a: b', "10.0.0.0/8", "plain", "", "null", "~", "2001:db8::/32", "1e3", 0x1F, yes]}
`, `kind: Policy
spec:
  values: ["yes", "1", "on", 'a: b', "10.0.0.0/8", plain, "", "null", "~", "2001:db8::/32", "1e3", 0x1F, yes]
`},
		{"documents stay apart, empty ones go", "---\n# a\nkind: A\n---\n---\n# b\nkind: B\n", "# a\nkind: A\n---\n# b\nkind: B\n"},
		{"line ends of other systems", "kind: A\r\nname: b\r\n", "kind: A\nname: b\n"},
		{"labels keep their order", "metadata:\n  labels: {spec: a, kind: b, apiVersion: c}\nkind: ThePolicy\n",
			"kind: ThePolicy\nmetadata:\n  labels:\n    spec: a\n    kind: b\n    apiVersion: c\n"},
		{"what is no policy keeps its lines", "spec:\n    a: [{b: 1,  c: 2}]\nkind: PolicyTest\n", "kind: PolicyTest\nspec:\n  a: [{b: 1, c: 2}]\n"},
		{"nothing but comments", "# only\n", "# only\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Format([]byte(tt.in))
			require.NoError(t, err)
			require.Equal(t, tt.want, string(got))
			again, err := Format(got)
			require.NoError(t, err)
			require.Equal(t, string(got), string(again))
		})
	}
}

func TestFormatRefuses(t *testing.T) {
	for _, in := range []string{"a: [", "a: b: c\n", "%YAML 1.2\n---\na: b\n", "a: *x\n"} {
		_, err := Format([]byte(in))
		require.Error(t, err, in)
	}
}

func TestWhatWouldBeLostIsRefused(t *testing.T) {
	require.NoError(t, same([]byte("a: 1 # x\n"), []byte("# x\na: 1\n")))
	require.Error(t, same([]byte("a: 1 # x\n"), []byte("a: 1\n")))
	require.Error(t, same([]byte("a: 1\nb: 2\n"), []byte("a: 1\n")))
	require.Error(t, same([]byte("a: '1'\n"), []byte("a: 1\n")))
	require.Error(t, same([]byte("# x\n# x\na: 1\n"), []byte("# x\na: 1\n")))
}
