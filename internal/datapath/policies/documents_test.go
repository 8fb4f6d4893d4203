// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"mustang/internal/datapath/objects"
	"mustang/internal/policy"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// texts returns policies with so many bytes of text each that cannot be compressed by more than a third.
func texts(policies, bytes int) (s Set) {
	for i := range policies {
		p := allow(fmt.Sprint("a", i), fmt.Sprint("a", i))
		in := policy.Requirement{Key: "a", Operator: "In"}
		for range bytes / 26 {
			in.Values = append(in.Values, rand.Text())
		}
		in.Sort()
		p.Ingress = []policy.Rule{{Peers: []policy.Peer{{Pods: &policy.PodSelector{Pods: policy.Selector{Requirements: []policy.Requirement{in}}}}}}}
		s.Policies = append(s.Policies, p)
	}
	return s
}

// TestAfterBrokenOff breaks a change off once its documents are written, which are as many as there may be, as were those before. The next one has
// room for as many, since it completes that one first. More than there may be are refused before anything is written.
func TestAfterBrokenOff(t *testing.T) {
	testkit.RequireRoot(t)
	p := openPods(t)
	p.Node = func() ([]netip.Addr, error) { return nil, nil }
	apply := func(s Set) error {
		_, err := p.Apply(t.Context(), service.Agent, s)
		return err
	}
	for range 2 {
		if err := apply(texts(100, 105_000)); err != nil {
			t.Fatal(err)
		}
	}
	docs, err := p.read()
	if err != nil {
		t.Fatal(err)
	}
	if n := len(docs.keys); n < mostPieces/4*3 {
		t.Fatalf("%d pieces: the test needs more", n)
	}
	was, now := docs.sets[service.Agent].content, newContent(texts(100, 105_000))
	if err := p.mark(); err != nil {
		t.Fatal(err)
	}
	put, _, err := p.packContent(docs, service.Agent, &was, &now)
	if err != nil {
		t.Fatal(err)
	}
	if err := put(); err != nil {
		t.Fatal(err)
	}
	if err := apply(texts(100, 105_000)); err != nil {
		t.Fatal(err)
	}
	var full *objects.FullError
	if err := apply(texts(100, 150_000)); !errors.As(err, &full) || full.Map != documentsMap {
		t.Error(err)
	}
	if pending, err := p.Pending(); err != nil || pending {
		t.Errorf("work is left: %t, %v", pending, err)
	}
}
