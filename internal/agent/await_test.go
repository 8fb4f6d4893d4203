// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"mustang/internal/kube/kubetest"
	"mustang/internal/service"
)

// TestAwaitPod waits for Pods: the policies are in the table when it returns, and else the error tells what is missing. A mirror Pod has
// a UID of its own, and the runtime knows that of the kubelet.
func TestAwaitPod(t *testing.T) {
	s := kubetest.Start(t)
	rows := &table{rows: map[service.Key]service.Service{}}
	a := agentOver(t, s, rows)
	await := func(name, uid string, limit time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		return a.AwaitPod(ctx, "shop", name, uid)
	}
	fails := func(name, uid, why string) {
		t.Helper()
		if err := await(name, uid, 50*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), why) {
			t.Errorf("%s %s: %v, want %q", name, uid, err, why)
		}
	}
	fails("web", "1", "has not read all objects")
	const pods, networkPolicies = "/api/v1/pods", "/apis/networking.k8s.io/v1/networkpolicies"
	put := func(name, node, more string) {
		s.Put(t, pods, fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "shop", "name": %q, "labels": {"app": %[1]q}, %[3]s}, "spec": {"nodeName": %[2]q}}`, name, node, more))
	}
	startAgent(t, a)
	if err := await("", "", time.Minute); err != nil {
		t.Errorf("the tables alone: %v", err)
	}
	put("web", "here", `"uid": "1"`)
	fails("web", "1", "no Namespace shop")
	s.Put(t, "/api/v1/namespaces", `{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}`)
	s.Put(t, networkPolicies, fmt.Sprintf(denyAll, ""))
	rows.wantsRules(t, "a policy", rules{[]string{"shop/deny"}, []string{"web map[app:web] []"}})
	put("late", "here", `"uid": "2"`)
	put("there", "elsewhere", `"uid": "3"`)
	put("static", "here", `"uid": "4", "annotations": {"kubernetes.io/config.mirror": "5"}`)
	for name, uid := range map[string]string{"web": "1", "late": "2", "static": "5"} {
		if err := await(name, uid, time.Minute); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		rows.Lock()
		if have := fmt.Sprint(rows.pods); !strings.Contains(have, name+" map[app:"+name+"]") {
			t.Errorf("%s: the table has %s", name, have)
		}
		rows.Unlock()
	}
	if err := await("late", "", time.Minute); err != nil {
		t.Errorf("a runtime that tells no UID: %v", err)
	}
	fails("late", "9", `no Pod shop/late with UID "9"`)
	fails("there", "3", "no Pod shop/there")
	fails("none", "7", "no Pod shop/none")

	rows.Lock()
	rows.refuses = errors.New("no tables")
	rows.Unlock()
	put("new", "here", `"uid": "8"`)
	var err error
	for begin := time.Now(); time.Since(begin) < time.Minute; {
		if err = await("new", "8", 300*time.Millisecond); err == nil || strings.Contains(err.Error(), "cannot be written: no tables") {
			break
		}
	}
	if err == nil || !strings.Contains(err.Error(), "cannot be written: no tables") {
		t.Errorf("policies that cannot be written: %v", err)
	}
	rows.Lock()
	rows.refuses = nil
	rows.Unlock()
	if err := await("new", "8", time.Minute); err != nil {
		t.Errorf("written at last: %v", err)
	}
}
