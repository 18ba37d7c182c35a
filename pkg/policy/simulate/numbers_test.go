package simulate

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/labels"
)

func TestNumbersAreStable(t *testing.T) {
	n := &Numbers{}
	a := labels.NewLabelArray(labels.New("k8s", "app", "a"))
	require.EqualValues(t, 256, n.Of(a))
	require.EqualValues(t, 257, n.Of(a.With(labels.New("k8s", "x", ""))))
	require.EqualValues(t, 256, n.Of(a))
	require.EqualValues(t, 1, n.Of(labels.NewLabelArray(labels.Reserved("host"))))
}
