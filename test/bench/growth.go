package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy"
	"github.com/weirnet/weir/pkg/policy/repository"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

// How often things are done in measureGrowth.
const (
	identityRounds = 500
	fullRounds     = 15
)

// cluster is a repository with endpoints that compute their map state, one after
// the other, when they are told to.
type cluster struct {
	repo     *repository.Repository
	subjects []policy.Subject
	builds   int
	lines    int // of the last map state
	err      error
}

// PolicyChanged has the affected endpoints computed again.
func (c *cluster) PolicyChanged(affected func(labels.LabelArray) bool, _ uint64) func(context.Context) {
	for _, s := range c.subjects {
		if affected(s.Labels) {
			answer, err := c.repo.Resolve(s)
			c.builds, c.lines, c.err = c.builds+1, len(answer.State), errors.Join(c.err, err)
		}
	}
	return func(context.Context) {}
}

// newCluster has policies of one rule each that select the endpoints in turn and
// let one peer in, but no identities yet.
func newCluster(policies, endpoints int) (*cluster, error) {
	repo, err := repository.New(repository.Config{})
	if err != nil {
		return nil, err
	}
	c := &cluster{repo: repo}
	repo.ObservePrefixes(func(map[netip.Prefix]bool) {})
	for i := range policies {
		peer := pods(fmt.Sprintf("ns%d", i/2), fmt.Sprintf("app%d", i))
		res := types.Resource{Kind: "NetworkPolicy", Namespace: "here", Name: fmt.Sprint(i)}
		_, err := repo.ReplaceByResource(res.Name, []*types.Policy{{
			Resource: res, Subject: pods("here", fmt.Sprintf("local%d", i%endpoints)), IsolatesIngress: true,
			Rules: []types.Rule{{
				Ref: types.RuleRef{Resource: res, Section: types.SectionIngress}, Verdict: types.Allow,
				Peers: []types.Peer{{Labels: &peer}}, Ports: []types.Port{{Proto: wtypes.ProtoTCP, Port: uint16(1 + i)}},
			}},
		}})
		if err != nil {
			return nil, err
		}
	}
	for i := range endpoints {
		c.subjects = append(c.subjects, policy.Subject{Identity: identity.NumericIdentity(1000 + i), Labels: podLabels("here", fmt.Sprintf("local%d", i))})
	}
	repo.Observe(c)
	return c, nil
}

// grow makes the identities of the endpoints and of peers appear, ten with the
// labels of each peer; then every endpoint computes its map state.
func (c *cluster) grow(ctx context.Context, identities int) error {
	ids := identity.IdentityMap{}
	for i := range identities {
		ids[identity.NumericIdentity(10_000+i)] = podLabels(fmt.Sprintf("ns%d", i/20), fmt.Sprintf("app%d", i/10))
	}
	for _, s := range c.subjects {
		ids[s.Identity] = s.Labels
	}
	err := c.repo.UpdateIdentities(ctx, ids, nil)
	c.PolicyChanged(func(labels.LabelArray) bool { return true }, 0)
	return errors.Join(err, c.err)
}

// addOne times an identity that appears and concerns one endpoint, then takes it
// away again.
func (c *cluster) addOne(ctx context.Context) (ms float64, err error) {
	one := identity.IdentityMap{9_000_000: podLabels("ns3", "app7")}
	before := c.builds
	ms, err = timed(func() error { return c.repo.UpdateIdentities(ctx, one, nil) })
	if err := errors.Join(err, c.err); err != nil {
		return 0, err
	}
	if c.builds != before+1 {
		return 0, fmt.Errorf("one identity made %d endpoints compute their policy, want 1", c.builds-before)
	}
	return ms, c.repo.UpdateIdentities(ctx, nil, one)
}

func podLabels(ns, app string) labels.LabelArray {
	return labels.PodLabels(labels.Pod{
		Namespace: ns, Cluster: "default", ServiceAccount: "default", Labels: map[string]string{"app": app},
		NamespaceLabels: map[string]string{"kubernetes.io/metadata.name": ns},
	})
}

// pods selects those of a namespace with the label app.
func pods(ns, app string) labels.Selector {
	in := func(key, value string) labels.Requirement {
		return labels.Requirement{Source: labels.SourceK8s, Key: key, Operator: labels.In, Values: []string{value}}
	}
	return labels.Equals(labels.New(labels.SourceK8s, labels.KeyPodNamespace, ns)).With(in(labels.KeyCluster, "default"), in("app", app))
}

// measureGrowth reports what one identity costs in a big cluster and in a small
// one, in turn, and a computation from nothing.
func measureGrowth(ctx context.Context, r *report) error {
	sizes := []struct{ identities, policies, endpoints int }{{1_000, 100, 100}, {10_000, 1_000, 100}}
	var clusters []*cluster
	for _, s := range sizes {
		c, err := newCluster(s.policies, s.endpoints)
		if err != nil {
			return err
		}
		if err := c.grow(ctx, s.identities); err != nil {
			return err
		}
		clusters = append(clusters, c)
	}
	ms := map[*cluster][]float64{}
	turn := slices.Clone(clusters)
	for range identityRounds {
		for _, c := range turn {
			v, err := c.addOne(ctx)
			if err != nil {
				return err
			}
			ms[c] = append(ms[c], v)
		}
		slices.Reverse(turn)
	}
	reportGrowth(ms[clusters[0]], ms[clusters[1]], r)

	var full []float64
	lines := 0
	for range fullRounds {
		c, err := newCluster(3_000, 1)
		if err != nil {
			return err
		}
		v, err := timed(func() error { return c.grow(ctx, 1_000) })
		if err != nil {
			return err
		}
		full, lines = append(full, v), c.lines
	}
	r.add(line{What: "full computation p50", Value: quantile(full, 0.5), Unit: "ms",
		Note: fmt.Sprintf("3000 rules of one endpoint, 1000 identities appear, %d lines; %s", lines, spread(full))})
	return nil
}

func reportGrowth(small, big []float64, r *report) {
	ratio := ratios(big, small)
	r.add(line{What: "one identity added p50", Value: quantile(small, 0.5), Unit: "ms", Note: "1000 identities, 100 policies, 100 endpoints; " + spread(small)})
	r.add(line{What: "one identity added in ten times that", Value: quantile(ratio, 0.5), Unit: "x", Baseline: "1000 identities, 100 policies", Aim: 1.5, Note: spread(ratio)})
}
