package endpointmanager

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func TestN21AnotherLinkReplacesAnEndpointWhoseLinkIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, h := newScene(t, t.TempDir())
		first := row(1)
		first.Audit = true
		e := create(t, m, h, first)
		again := row(1)
		again.IfIndex, again.NetNS = 900, "/run/netns/new"
		h.links[900] = true

		_, _, err := m.Create(t.Context(), again)
		var duplicate *DuplicateError
		require.ErrorAs(t, err, &duplicate, "its link lives")
		require.Same(t, e, m.ByID(e.ID))
		require.True(t, e.Row().State.Alive())

		h.links[first.IfIndex] = false
		next, created, err := m.Create(t.Context(), again)
		require.NoError(t, err)
		require.True(t, created)
		require.Equal(t, []uint16{e.ID}, h.removed)
		require.Equal(t, again.IfIndex, next.Row().IfIndex)
		require.Equal(t, first.Addrs(), next.Row().Addrs())
		require.True(t, next.Row().Audit, "settings are of the pod, not of its link")
		require.Same(t, next, m.ByAttachment(again.ContainerID, again.ContainerInterface))
	})
}

func TestN20TheNetworkIsNotedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, h := newScene(t, t.TempDir())
		e := create(t, m, h, row(1))
		again := row(1)
		again.Network = "red"
		same, created, err := m.Create(t.Context(), again)
		require.NoError(t, err)
		require.False(t, created)
		require.Same(t, e, same)
		require.Equal(t, "red", e.Row().Network)
		again.Network = "blue"
		_, _, err = m.Create(t.Context(), again)
		require.ErrorContains(t, err, "of network red")
		require.Equal(t, "red", e.Row().Network)
	})
}
