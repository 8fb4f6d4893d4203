// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"strings"

	"mustang/internal/kube"
)

// AwaitPod waits until the tables have the policies of the cluster, as far as the agent has been told of them when it knows a Pod of this
// node: its labels and its namespace. The UID is that of the runtime, which for a static Pod is not that of its mirror; empty: any. A
// name that is empty stands for a pod that is none of the cluster: only the tables are waited for. The error tells what the agent still
// waited for when the context ended.
func (a *Agent) AwaitPod(ctx context.Context, namespace, name, uid string) error {
	var from uint64 // the version that has to be written; 0: not known yet
	for {
		a.mu.Lock()
		lacks := a.lacks(namespace, name, uid)
		if from == 0 && lacks == "" {
			from = a.policies.version
			a.awaited++
			defer a.noLongerAwaited()
			if a.policies.changed {
				a.wake() // policiesDue may have put the change off
			}
		}
		if from > 0 && a.policies.written >= from {
			a.mu.Unlock()
			return nil
		}
		if from > 0 {
			lacks = "the policies are not written yet"
			if err := a.policies.failure; err != nil {
				lacks = fmt.Sprintf("the policies cannot be written: %v", err)
			}
		}
		if a.progress == nil {
			a.progress = make(chan struct{})
		}
		progress := a.progress
		a.mu.Unlock()
		select {
		case <-progress:
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", lacks, ctx.Err())
		}
	}
}

func (a *Agent) noLongerAwaited() {
	a.mu.Lock()
	a.awaited--
	a.mu.Unlock()
}

// lacks tells what the agent has not been told yet of a Pod; empty: it knows it.
func (a *Agent) lacks(namespace, name, uid string) string {
	at := object{kube.Pods.Resource, namespace, name}
	known := a.policies.of[at].pod
	_, there := a.policies.of[object{kube.Namespaces.Resource, "", namespace}]
	switch {
	case !a.synced:
		return strings.TrimSuffix("the agent has not read all objects of the cluster yet: "+a.State.Report().Unread, ": ")
	case name == "":
		return ""
	case a.unread[at] != "":
		return fmt.Sprintf("Pod %s/%s cannot be read: %s", namespace, name, a.unread[at])
	case known == nil || uid != "" && known.uid != uid && known.mirrors != uid:
		return fmt.Sprintf("the API server has told of no Pod %s/%s with UID %q on this node", namespace, name, uid)
	case !there:
		return fmt.Sprintf("the API server has told of no Namespace %s", namespace)
	}
	return ""
}

// proceed has those look again who wait. The caller has the lock.
func (a *Agent) proceed() {
	if a.progress != nil {
		close(a.progress)
		a.progress = nil
	}
}
