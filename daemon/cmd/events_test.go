package cmd

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/monitor"
	policytypes "github.com/weirnet/weir/pkg/policy/types"
)

func TestAnEventSaysWhoAndWhereBothEndsAre(t *testing.T) {
	e := &events{
		labels: func(id identity.NumericIdentity) labels.LabelArray {
			return labels.NewLabelArray(labels.New(labels.SourceK8s, "number", id.String()))
		},
		rule: func(policytypes.RuleID) (policytypes.RuleRef, bool) { return policytypes.RuleRef{}, false },
	}
	got := e.model(monitor.Event{
		Type: monitor.Verdict, Verdict: policytypes.Allow,
		Source: monitor.Peer{Identity: 1000}, Destination: monitor.Peer{Port: 80, Identity: 1001, PrefixIdentity: 1 << 24},
	})
	require.Equal(t, gen.EventPeer{Identity: 1000, Labels: []string{"k8s:number=1000"}}, got.Source)
	require.Equal(t, gen.EventPeer{Port: 80, Identity: 1001, PrefixIdentity: 1 << 24, Labels: []string{"k8s:number=1001"}}, got.Destination)
	require.Empty(t, got.Reason, "an allow has none")
}
