// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"io"
	"net/url"

	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
)

// ExecCommand is a command in a container of a pod.
type ExecCommand struct {
	Namespace, Pod, Container string
	Words                     []string
}

// ExecStreams are those of a command, which any goroutine may use. Stdin may be nil.
type ExecStreams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// Exec runs a command. Errors: those of the API server and the kubelet; the exit code; why the context has ended, at once, whatever is
// still read or written then.
func Exec(ctx context.Context, config *rest.Config, run ExecCommand, streams ExecStreams) error {
	exec, err := executor(ctx, config, run, streams.Stdin != nil)
	if err == nil {
		done := make(chan error, 1)
		go func() {
			done <- exec.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: streams.Stdin, Stdout: streams.Stdout, Stderr: streams.Stderr})
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
func executor(ctx context.Context, config *rest.Config, run ExecCommand, stdin bool) (remotecommand.Executor, error) {
	target, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, err
	}
	parameters := url.Values{"container": {run.Container}, "stdout": {"true"}, "stderr": {"true"}, "command": run.Words}
	if stdin {
		parameters.Set("stdin", "true")
	}
	target = target.JoinPath("api/v1/namespaces", run.Namespace, "pods", run.Pod, "exec")
	target.RawQuery = parameters.Encode()
	socket, err := remotecommand.NewWebSocketExecutor(config, "GET", target.String())
	if err != nil {
		return nil, err
	}
	spdy, err := remotecommand.NewSPDYExecutor(config, "POST", target)
	if err != nil {
		return nil, err
	}
	return remotecommand.NewFallbackExecutor(socket, spdy, func(err error) bool {
		return ctx.Err() == nil && (httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err))
	})
}
