// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"io"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"

	"mustang/internal/document"
)

// Get writes the answer of the API server to a path, "/api/v1/nodes?limit=500".
func (c *Client) Get(ctx context.Context, path string, to io.Writer) error {
	body, err := c.rest.Get().RequestURI(path).Stream(ctx)
	if err != nil {
		return fmt.Errorf("get %s: %w", path, err)
	}
	defer body.Close()
	_, err = io.Copy(to, body)
	return err
}

// PodOn is a pod, and the node that it is on; empty: none yet.
type PodOn struct{ Name, Node string }

// PodsOf returns the pods of a namespace that labels select, as in `kubectl get -l`.
func (c *Client) PodsOf(ctx context.Context, namespace, labels string) (pods []PodOn, err error) {
	data, err := c.rest.Get().AbsPath("/api/v1/namespaces/", namespace, "/pods").Param("labelSelector", labels).DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("list pods of namespace %s: %w", namespace, err)
	}
	var list struct {
		Items []jsontext.Value `json:"items"`
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("list pods of namespace %s: %w", namespace, err)
	}
	for _, item := range list.Items {
		var o struct {
			Metadata document.Metadata `json:"metadata"`
			Spec     struct {
				NodeName string `json:"nodeName"`
			} `json:"spec"`
		}
		if err := document.Decode(item, &o); err != nil {
			return nil, err
		}
		pods = append(pods, PodOn{o.Metadata.Name, o.Spec.NodeName})
	}
	return pods, nil
}

// Command is a command in a container of a pod.
type Command struct {
	Namespace, Pod, Container string
	Words                     []string
}

// Exec runs a command, and writes what it prints, to writers that any goroutine may use. Errors: those of the API server and the kubelet;
// the exit code; why the context has ended, at once, whatever is still written then.
func (c *Client) Exec(ctx context.Context, run Command, stdout, stderr io.Writer) error {
	request := c.rest.Post().AbsPath("/api/v1/namespaces/", run.Namespace, "/pods/", run.Pod, "/exec").
		Param("container", run.Container).Param("stdout", "true").Param("stderr", "true")
	for _, word := range run.Words {
		request = request.Param("command", word)
	}
	exec, err := executor(ctx, c.config, request)
	if err == nil {
		done := make(chan error, 1)
		go func() {
			done <- exec.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: stdout, Stderr: stderr})
		}()
		select { // the library heeds the context once it is connected
		case err = <-done:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	if err != nil {
		return fmt.Errorf("run %q in pod %s/%s: %w", run.Words, run.Namespace, run.Pod, err)
	}
	return nil
}

// executor speaks WebSocket, and SPDY where the API server, or a proxy before it, does not know that.
func executor(ctx context.Context, config *rest.Config, request *rest.Request) (remotecommand.Executor, error) {
	socket, err := remotecommand.NewWebSocketExecutor(config, "GET", request.URL().String())
	if err != nil {
		return nil, err
	}
	spdy, err := remotecommand.NewSPDYExecutor(config, "POST", request.URL())
	if err != nil {
		return nil, err
	}
	return remotecommand.NewFallbackExecutor(socket, spdy, func(err error) bool {
		return ctx.Err() == nil && (httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err))
	})
}
