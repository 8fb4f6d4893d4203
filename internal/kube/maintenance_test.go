// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"net/http"
	"sync/atomic"
	"testing"

	"mustang/internal/kube/kubetest"
)

// TestNoList has something before the API server answer in its place, with JSON and status 200: what there was stays.
func TestNoList(t *testing.T) {
	for _, body := range []string{
		`{}`, `{"message": "down for maintenance"}`, `{"items": []}`,
		`{"kind": "Status", "apiVersion": "v1", "status": "Success"}`, `{"kind": "ServiceList", "apiVersion": "v1", "metadata": {}}`,
	} {
		t.Run(body, func(t *testing.T) {
			t.Parallel()
			s := kubetest.Start(t)
			s.Put(t, services, object("one", "1"))
			w := start(t, s)
			w.eventually(t, "first list", func() bool { return w.synced == 1 })
			var asked atomic.Int32
			s.Handle(services, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				if r.URL.Query().Get("watch") == "" {
					asked.Add(1)
				}
				_, _ = w.Write([]byte(body))
			}))
			s.Forget()
			w.eventually(t, "asked three times", func() bool { return asked.Load() >= 3 || len(w.objects) == 0 })
			if len(w.objects) != 1 {
				t.Errorf("after an answer that is no list there are %v", w.objects)
			}
		})
	}
}
