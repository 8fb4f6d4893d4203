// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"mustang/internal/kube"
)

// Limits of what is collected from a cluster.
const (
	atOnce    = 4                // nodes
	podTime   = 90 * time.Second // for a node
	podSize   = 32               // for a node, in MiB
	logLines  = 20_000
	logBytes  = 8 << 20
	maxEvents = 1000
)

// container is the name of the agent's container in its pod.
const container = "agent"

// cluster collects from all nodes of a cluster. It returns of how many it has what their agents' pods collect.
func (d dump) cluster(ctx context.Context, a *archive) (of string, err error) {
	client, err := kube.Connect(d.kubeconfig)
	if err != nil {
		return "", err
	}
	pods, err := client.PodsOf(ctx, d.namespace, d.selector)
	if err != nil {
		return "", err // no cluster, or no rights
	}
	if len(pods) == 0 {
		return "", fmt.Errorf("namespace %s lacks pods with labels %s", d.namespace, d.selector)
	}
	in, labels := "/api/v1/namespaces/"+url.PathEscape(d.namespace), "labelSelector="+url.QueryEscape(d.selector)
	objects := map[string]string{
		"version": "/version", "nodes": "/api/v1/nodes?limit=5000",
		"daemonsets": fmt.Sprintf("/apis/apps/v1/namespaces/%s/daemonsets?%s", url.PathEscape(d.namespace), labels), "pods": in + "/pods?" + labels,
		"events-of-agents": fmt.Sprintf("/api/v1/events?limit=%d&fieldSelector=%s", maxEvents, url.QueryEscape("source=mustang-agent")),
		"events":           fmt.Sprintf("%s/events?limit=%d", in, maxEvents),
	}
	var items []item
	for name, request := range objects {
		items = append(items, item{Name: "cluster/" + name + ".json", Collect: func(ctx context.Context, to io.Writer) error {
			return client.Get(ctx, request, to)
		}})
	}
	if err := a.Collect(ctx, itemTime, items); err != nil {
		return "", err
	}
	var all errgroup.Group
	all.SetLimit(atOnce)
	var done atomic.Int64
	for _, pod := range pods {
		all.Go(func() error {
			if d.pod(ctx, client, a, pod) {
				done.Add(1)
			}
			return nil
		})
	}
	_ = all.Wait() // they return none
	if n := int(done.Load()); n < len(pods) {
		return fmt.Sprintf("%d of %d nodes", n, len(pods)), nil
	}
	return count(len(pods), "node", "nodes"), nil
}

// pod collects from the node of an agent's pod, and reports whether that answered. What fails is missing.
func (d dump) pod(ctx context.Context, client *kube.Client, a *archive, pod kube.PodOn) bool {
	dir := path.Join("nodes", path.Base("/"+cmp.Or(pod.Node, pod.Name)))
	within, cancel := context.WithTimeoutCause(ctx, podTime, fmt.Errorf("not done within %s", podTime))
	defer cancel()
	log := fmt.Sprintf("/api/v1/namespaces/%s/pods/%s/log?container=%s&tailLines=%d&limitBytes=%d", url.PathEscape(d.namespace), url.PathEscape(pod.Name), container, logLines, logBytes)
	items := []item{{Name: dir + "/agent.log", Collect: func(ctx context.Context, to io.Writer) error { return client.Get(ctx, log, to) }}}
	if pod.Restarted {
		items = append(items, item{Name: dir + "/agent-before.log", Collect: func(ctx context.Context, to io.Writer) error {
			return client.Get(ctx, log+"&previous=true", to)
		}})
	}
	err := a.Collect(within, itemTime, items)
	if err == nil {
		var archive, stderr buffer
		words := []string{"mustang", "sysdump", "-f", "-", "--max-size", fmt.Sprint(podSize), "--timeout", (podTime - itemTime).String()}
		err = client.Exec(within, kube.ExecCommand{Namespace: d.namespace, Pod: pod.Name, Container: container, Words: words}, kube.ExecStreams{Stdout: &archive, Stderr: &stderr})
		if said := bytes.TrimSpace(stderr.Bytes()); err != nil && len(said) > 0 {
			err = fmt.Errorf("%w: %s", err, said)
		}
		err = errors.Join(err, a.Merge(dir, bytes.NewReader(archive.Bytes())))
	}
	if err != nil && within.Err() != nil {
		err = errors.Join(context.Cause(within), err)
	}
	if err != nil {
		a.Missing(dir, err)
	}
	return err == nil
}
