package v1

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/api/v1/gen"
)

func loadSpec(t *testing.T) *openapi3.T {
	doc, err := openapi3.NewLoader().LoadFromData(Spec)
	require.NoError(t, err)
	return doc
}

func TestSpecIsValidAndCarriesTheVersionOfTheCode(t *testing.T) {
	doc := loadSpec(t)
	require.NoError(t, doc.Validate(context.Background()))
	require.Equal(t, Version, doc.Info.Version)
	require.Equal(t, Base, doc.Servers[0].URL)
}

func TestEveryOperationCanFailInTheOneForm(t *testing.T) {
	for path, item := range loadSpec(t).Paths.Map() {
		for method, op := range item.Operations() {
			ref := op.Responses.Value("default")
			require.NotNil(t, ref, "%s %s", method, path)
			require.Equal(t, "#/components/responses/Error", ref.Ref, "%s %s", method, path)
		}
	}
}

func TestEveryOperationHasAHandlerInTheServerInterface(t *testing.T) {
	server := reflect.TypeFor[gen.StrictServerInterface]()
	count := 0
	for path, item := range loadSpec(t).Paths.Map() {
		for method, op := range item.Operations() {
			count++
			name := strings.ToUpper(op.OperationID[:1]) + op.OperationID[1:]
			_, ok := server.MethodByName(name)
			require.True(t, ok, "%s %s: no method %s", method, path, name)
		}
	}
	require.Equal(t, server.NumMethod(), count)
}

func TestEveryCodeOfTheServerIsDocumentedWithItsStatus(t *testing.T) {
	text := loadSpec(t).Components.Schemas["Error"].Value.Properties["code"].Value.Description
	flat := strings.Join(strings.Fields(text), " ")
	for code, status := range statuses {
		require.Contains(t, flat, fmt.Sprintf("%s %d", code, status))
	}
}

func TestGeneratedCodeIsCurrent(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "api.gen.go")
	cmd := exec.Command("go", "tool", "oapi-codegen", "-config", "oapi-codegen.yaml", "-o", out, "openapi.yaml")
	text, err := cmd.CombinedOutput()
	require.NoError(t, err, string(text))
	want, err := os.ReadFile(out)
	require.NoError(t, err)
	have, err := os.ReadFile("gen/api.gen.go")
	require.NoError(t, err)
	require.True(t, string(want) == string(have), "gen/api.gen.go differs from the spec; run go generate ./api/v1")
}

func TestVersionsAgreeByMajorNumber(t *testing.T) {
	for peer, want := range map[string]bool{"1.0": true, "1.7": true, "2.0": false, "0.9": false, "": false, "1": false, "one.two": false, "-1.0": false} {
		require.Equal(t, want, Compatible(peer), "peer %q", peer)
	}
}

func TestErrorSurvivesTheWireAndNamesTheNextStep(t *testing.T) {
	cause := errors.New("no space")
	e := Errorf(CodeExhausted, "enlarge the pool", "lease for %s: %w", "shop/web", cause)
	e.LastStation, e.WaitingFor = "cni.add", "ipam.lease"
	require.ErrorIs(t, e, cause)
	back := FromWire(e.Wire())
	require.Equal(t, e.Error(), back.Error())
	require.Equal(t, "lease for shop/web: no space (last finished station cni.add, waiting for ipam.lease); enlarge the pool", back.Error())
	require.Equal(t, CodeExhausted, CodeOf(fmt.Errorf("outer: %w", back)))
	require.Equal(t, Code(""), CodeOf(cause))
	require.Equal(t, 500, Code("never heard of").Status())
}
