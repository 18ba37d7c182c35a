package api

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	v1 "github.com/weirnet/weir/api/v1"
)

const (
	putEndpoint   = "PUT /v1/endpoint/{id}"
	patchEndpoint = "PATCH /v1/endpoint/{id}"
	postIPAM      = "POST /v1/ipam"
)

// fitting is a body that each operation takes.
var fitting = map[string]string{
	putEndpoint: `{"containerId":"c1","interface":{"hostName":"lxc1","hostIndex":3,"containerName":"eth0","mac":"02:00:00:00:00:01","hostMac":"02:00:00:00:00:02"},` +
		`"addressing":{"ipv4":"10.0.0.7"},"labels":{"a":"b"},"sync":true,"timeoutSeconds":5}`,
	patchEndpoint: `{"audit":true,"enforcement":"never"}`,
	postIPAM:      `{"owner":"c1:eth0","pod":{"namespace":"a","name":"b"},"requested":["10.0.0.7"]}`,
}

func TestEveryJSONBodyIsHeldAgainstTheSpec(t *testing.T) {
	all, err := bodies()
	require.NoError(t, err)
	require.ElementsMatch(t, slices.Collect(maps.Keys(fitting)), slices.Collect(maps.Keys(all)), "give a fitting body of the new operation")
	s := startServer(t, Sources{}, nil)
	for operation, body := range fitting {
		require.NoError(t, checkBody(operation, []byte(body)), operation)
		require.NoError(t, checkBody(operation, []byte(" "+body+"\n")), operation)
		method, path, _ := strings.Cut(strings.ReplaceAll(operation, "{id}", "5"), " ")
		for bad, text := range map[string]string{
			strings.Replace(body, "{", `{"extra":1,`, 1): "field extra: does not exist",
			body + " x":           "text after the object",
			body + body:           "text after the object",
			"{}":                  "is missing",
			"null":                "the body is not of the type object",
			"[" + body + "]":      "the body is not of the type object",
			"":                    "the JSON body is missing",
			body[:len(body)-1]:    "ends too early",
			strings.ToUpper(body): "does not exist", // a decoder in Go would take it
		} {
			resp, e := s.ask(method, path, strings.NewReader(bad))
			require.Equal(t, 400, resp.StatusCode, "%s %s", operation, bad)
			require.Equal(t, string(v1.CodeInvalid), e.Code)
			require.Contains(t, e.Text, text, "%s %s", operation, bad)
		}
	}
}

func TestLimitsOfTheSpecAreKept(t *testing.T) {
	long := func(n int) string { return strings.Repeat("x", n) }
	for _, c := range []struct{ operation, old, new, text string }{
		{putEndpoint, `"timeoutSeconds":5`, `"timeoutSeconds":1000000000000000000`, "field timeoutSeconds: 1000000000000000000 is more than 600"},
		{putEndpoint, `"timeoutSeconds":5`, `"timeoutSeconds":99999999999999999999`, "field timeoutSeconds: 99999999999999999999 is no integer"},
		{putEndpoint, `"timeoutSeconds":5`, `"timeoutSeconds":-1`, "field timeoutSeconds: -1 is less than 1"},
		{putEndpoint, `"timeoutSeconds":5`, `"timeoutSeconds":1.5`, "field timeoutSeconds: 1.5 is no integer"},
		{putEndpoint, `"hostIndex":3`, `"mtu":-1`, "field interface.mtu: -1 is less than 0"},
		{putEndpoint, `"hostIndex":3`, `"mtu":65536`, "field interface.mtu: 65536 is more than 65535"},
		{putEndpoint, `"hostIndex":3`, `"hostIndex":"3"`, "field interface.hostIndex: is not of the type integer"},
		{putEndpoint, `"hostIndex":3`, `"index":3`, "field interface.index: does not exist"},
		{putEndpoint, `"mac":"02:00:00:00:00:01",`, ``, "field interface.mac: is missing"},
		{putEndpoint, `"a":"b"`, `"a":null`, "field labels.a: is not of the type string"},
		{putEndpoint, `"a":"b"`, `"a\u0000":7`, `field "labels.a\x00": is not of the type string`},
		{putEndpoint, `"sync":true`, `"sync":1`, "field sync: is not of the type boolean"},
		{putEndpoint, `"sync":true`, `"netns":"a\u0000b"`, "field netns: "},
		{putEndpoint, `"sync":true`, `"leaseId":"` + long(65) + `"`, "field leaseId: has 65 characters, more than 64"},
		{postIPAM, "c1:eth0", long(900_000), "field owner: has 900000 characters, more than 1100"},
		{postIPAM, "c1:eth0", `c1\u0000eth0`, `field owner: "c1\x00eth0" does not fit`},
		{postIPAM, "c1:eth0", ``, "field owner: has 0 characters, less than 1"},
		{postIPAM, `"name":"b"`, `"name":"b\n"`, "field pod.name: "},
		{postIPAM, `["10.0.0.7"]`, `["10.0.0.7","10.0.0.8","10.0.0.9"]`, "field requested: has more than 2 items"},
		{postIPAM, `["10.0.0.7"]`, `["` + long(46) + `"]`, "field requested[0]: has 46 characters"},
		{postIPAM, `["10.0.0.7"]`, strings.Repeat("[", 100_000), "field requested[0]: is not of the type string"},
		{patchEndpoint, `{`, `{"audit":false,`, "field audit: is given twice"},
		{patchEndpoint, `"never"`, `"sometimes"`, `field enforcement: "sometimes" is not known; give one of node, default, always, never`},
		{patchEndpoint, `"never"`, `true`, "field enforcement: is not of the type string"},
		{patchEndpoint, `"audit":true,"enforcement":"never"`, ``, "the body has 0 fields, and of audit, enforcement, network at least 1: one is missing"},
		{patchEndpoint, `"audit"`, `"` + long(2000) + `"`, `xxx": does not exist`},
	} {
		body := strings.Replace(fitting[c.operation], c.old, c.new, 1)
		require.NotEqual(t, fitting[c.operation], body, c.new)
		err := checkBody(c.operation, []byte(body))
		require.Equal(t, v1.CodeInvalid, v1.CodeOf(err), c.new)
		require.ErrorContains(t, err, c.text)
		require.Less(t, len(err.Error()), 400)
	}
	var many []string
	for i := range 1025 {
		many = append(many, fmt.Sprintf(`"l%d":""`, i))
	}
	require.ErrorContains(t, checkBody(putEndpoint, []byte(strings.Replace(fitting[putEndpoint], `"a":"b"`, strings.Join(many, ","), 1))), "field labels: has more than 1024 members")
}

// A limit that the spec states and checkBody does not know would be a promise not kept.
func TestEveryKeywordOfABodysSchemaIsKnown(t *testing.T) {
	known := map[string]bool{"description": true}
	for f := range reflect.TypeFor[schema]().Fields() {
		known[f.Tag.Get("yaml")] = true
	}
	var spec map[string]any
	require.NoError(t, yaml.Unmarshal(v1.Spec, &spec))
	in := func(v any, path ...string) any {
		for _, p := range path {
			v = v.(map[string]any)[p]
		}
		return v
	}
	count := 0
	var walk func(name string, s map[string]any)
	walk = func(name string, s map[string]any) {
		count++
		for k, v := range s {
			require.True(t, known[k] || strings.HasPrefix(k, "x-"), "%s: checkBody does not know %s", name, k)
			switch k {
			case "$ref":
				ref := strings.TrimPrefix(v.(string), "#/components/schemas/")
				walk(ref, in(spec, "components", "schemas", ref).(map[string]any))
			case "properties":
				for p, part := range v.(map[string]any) {
					walk(name+"."+p, part.(map[string]any))
				}
			case "items":
				walk(name+"[]", v.(map[string]any))
			case "additionalProperties":
				if part, ok := v.(map[string]any); ok {
					walk(name+".*", part)
				}
			case "type":
				require.Contains(t, []string{"object", "array", "string", "integer", "boolean"}, v, name)
			}
		}
	}
	for operation := range fitting {
		method, path, _ := strings.Cut(operation, " ")
		walk(operation, in(spec, "paths", strings.TrimPrefix(path, v1.Base), strings.ToLower(method), "requestBody", "content", "application/json", "schema").(map[string]any))
	}
	require.Greater(t, count, 20)
}
