// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"mustang/internal/kube/kubetest"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestRetryUnderChange has a Service that is never served, since another owner has its address, and whose endpoints change all the time:
// what failed besides is written all the same.
func TestRetryUnderChange(t *testing.T) {
	s := kubetest.Start(t)
	rows := &table{rows: map[service.Key]service.Service{}}
	rows.other = service.Key{Frontend: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: service.TCP}
	s.Put(t, services, serviceAt("taken", "10.96.0.1", ""))
	a := start(t, s, rows)
	s.Put(t, services, serviceAt("two", "10.96.0.2", ""))
	rows.wants(t, "from the begin", "10.96.0.2:80/tcp []")
	rows.Lock()
	rows.refuses = errors.New("no")
	rows.Unlock()
	s.Put(t, "/api/v1/namespaces", `{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}`)
	s.Put(t, "/apis/networking.k8s.io/v1/networkpolicies",
		`{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"namespace": "shop", "name": "closed"}, "spec": {"podSelector": {}}}`)
	testkit.Eventually(t, time.Minute, func() error {
		if rounds, _ := a.State.Rounds(); rounds.Failed == 0 {
			return errors.New("no round has failed")
		}
		return nil
	})
	rows.Lock()
	rows.refuses = nil
	rows.Unlock()
	churn := 0
	testkit.Eventually(t, 20*time.Second, func() error {
		churn++
		s.Put(t, endpointSlices, sliceOf("taken", "taken", "a", fmt.Sprintf("10.1.0.%d", churn%250+1)))
		rows.Lock()
		defer rows.Unlock()
		if len(rows.policies) != 1 {
			return fmt.Errorf("after %d changes there are the policies %v", churn, rows.policies)
		}
		return nil
	})
}

// TestLogUnderChange has a Service that is never served change all the time: the log says so when all is tried again, not each time.
func TestLogUnderChange(t *testing.T) {
	s := kubetest.Start(t)
	rows := &table{rows: map[service.Key]service.Service{}}
	rows.other = service.Key{Frontend: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: service.TCP}
	s.Put(t, services, serviceAt("taken", "10.96.0.1", ""))
	var log syncBuffer
	start(t, s, rows, logging(&log))
	calls := func() int {
		rows.Lock()
		defer rows.Unlock()
		return rows.calls
	}
	churn := 0
	testkit.Eventually(t, 30*time.Second, func() error {
		churn++
		s.Put(t, endpointSlices, sliceOf("taken", "taken", "a", fmt.Sprintf("10.1.0.%d", churn%250+1)))
		if n := calls(); n < 200 {
			return fmt.Errorf("%d calls", n)
		}
		return nil
	})
	if n := strings.Count(log.String(), "level=ERROR"); n == 0 || n > 10 {
		t.Errorf("%d errors in the log, of 200 calls that failed", n)
	}
}
