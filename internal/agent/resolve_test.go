// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"

	"mustang/internal/kube"
)

// TestChangeWhileLooked has a Service changed while a round looks at it: the next round has the change.
func TestChangeWhileLooked(t *testing.T) {
	s := newServiceSet("here")
	for i, ip := range []string{"10.96.0.1", "10.96.0.2"} {
		of, _ := s.take()
		if err := s.on(kube.Event{Kind: kube.Services, Namespace: "shop", Name: "web", Object: []byte(serviceAt("web", ip, ""))}); err != nil {
			t.Fatal(err)
		}
		resolve(of)
		if s.merge(of, quiet()); len(s.wanted.services()) != i || len(s.dirty) != 1 {
			t.Errorf("round %d: there are %v, changed %v", i, s.wanted.services(), s.dirty)
		}
	}
	if all := s.wanted.services(); all[0].Frontend.String() != "10.96.0.1:80" {
		t.Errorf("there are %v", all)
	}
	if collect(s, quiet()); s.wanted.services()[0].Frontend.String() != "10.96.0.2:80" || len(s.dirty) > 0 {
		t.Errorf("after all there are %v", s.wanted.services())
	}
}
