// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"testing"

	"mustang/internal/kube"
)

// BenchmarkRound looks at 10,000 Services of five endpoints each, all of which have changed.
func BenchmarkRound(b *testing.B) {
	s := newServiceSet("here")
	for i := range 10_000 {
		name, ip := fmt.Sprint("web-", i), fmt.Sprintf("10.96.%d.%d", i>>8, i&255)
		var ips []string
		for k := range 5 {
			ips = append(ips, fmt.Sprintf("10.1.%d.%d", i>>8, (i+k)&255))
		}
		for kind, object := range map[kube.Kind]string{kube.Services: serviceAt(name, ip, ""), kube.EndpointSlices: sliceOf(name, name, "a", ips...)} {
			if err := s.on(kube.Event{Kind: kind, Namespace: "shop", Name: name, Object: []byte(object)}); err != nil {
				b.Fatal(err)
			}
		}
	}
	w := quiet()
	for b.Loop() {
		s.all = true
		collect(s, w)
	}
}
