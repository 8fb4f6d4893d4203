// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/agent/status"
)

const (
	wrongAtOnce = 10       // objects that the summary shows
	maxStatus   = 64 << 20 // bytes of an answer
	// namesWait bounds the request for names. It is longer than an agent waits for a round.
	namesWait = 10 * time.Second
)

// AddRunDir adds the flag of the directory of an agent's sockets.
func AddRunDir(flags *pflag.FlagSet, to *string) {
	flags.StringVar(to, "run-dir", status.DefaultDir, "`directory` of the agent's sockets, which root alone can use")
}

// Handler serves the agent's socket: /status and /metrics.
func Handler(report func(context.Context, status.Query) (status.Report, error), metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics)
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) {
		answer, err := report(r.Context(), status.ParseQuery(r.URL.Query()))
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer) // on an error the client is gone
	})
	return mux
}

// AgentStatus returns the command agent status.
func AgentStatus(c *cli.Config) *cobra.Command {
	var dir, format string
	var wait time.Duration
	var q status.Query
	cmd := &cobra.Command{
		Use:   "status [KIND [NAME]]",
		Short: "Show what the agent of this node has to install, what is installed, and why they differ",
		Long: `Compare what the agent of this node read from the cluster with what is installed, and show the
differences with their reasons. Without arguments, one screen of totals with the first objects that
are wrong.

KIND is service, policy, networkpolicy, clusternetworkpolicy, node or pod, or kubectl's svc, netpol,
no or po; NAME is an object's name, with its namespace or without. WANTED counts the frontends,
policies, routes and addresses of the objects.

--wait waits until an agent answers, all is ok and no object waits to be written. At the deadline,
the last report is printed.

Exit codes: 0 all is ok, 1 something is wrong or not all has been written once, 2 misused.`,
		Example: `  mustang agent status
  mustang agent status --wait 2m
  mustang agent status --wrong
  mustang agent status service shop/web
  mustang agent status nodes -o json`,
		Args: cli.Arguments("[KIND]", "[NAME]"),
		PreRunE: cli.Check(func(args []string) error {
			words := append(args, "", "")
			q.Kind, q.Name = words[0], words[1]
			if wait < 0 {
				return fmt.Errorf("--wait %s: want 0 or more", wait)
			}
			return q.Validate()
		}),
		RunE: cli.AsRoot(func(ctx context.Context, _ []string) error {
			if q.Kind == "" && !q.Wrong {
				q.Limit = wrongAtOnce
			}
			return untilInstalled(ctx, wait, c.Stdout, func(ctx context.Context, to io.Writer) (waiting int, err error) {
				r, err := ask(ctx, dir, q)
				if err != nil {
					return 0, err
				}
				for _, k := range r.Kinds {
					waiting += k.Waiting
				}
				return waiting, show(to, r, format, q)
			})
		}),
	}
	cmd.Flags().DurationVar(&wait, "wait", 0, "longest wait until all is installed; 0 does not wait")
	cmd.Flags().BoolVar(&q.Wrong, "wrong", false, "show the objects that are wrong, all of them")
	cli.AddOutput(cmd, &format)
	AddRunDir(cmd.Flags(), &dir)
	return cmd
}

// askAgain is the time between two requests of --wait.
const askAgain = 500 * time.Millisecond

// untilInstalled calls look, which prints, until it returns no error and no object waits. At the deadline it prints
// the last text that a call printed. Without a wait it calls look once.
func untilInstalled(ctx context.Context, wait time.Duration, to io.Writer,
	look func(context.Context, io.Writer) (waiting int, err error)) error {
	deadline, limited := time.Now().Add(wait), ctx
	if wait > 0 {
		var cancel context.CancelFunc
		limited, cancel = context.WithDeadline(ctx, deadline.Add(askAgain)) // an agent may hang
		defer cancel()
	}
	var last []byte // what look printed last
	for {
		var text bytes.Buffer
		waiting, err := look(limited, &text)
		if text.Len() > 0 {
			last = text.Bytes()
		}
		if err == nil && waiting > 0 && wait > 0 {
			err = errors.New(count(waiting, "object waits to be written", "objects wait to be written"))
		}
		left := time.Until(deadline)
		if err == nil || left <= 0 {
			_, printed := to.Write(last) // in one piece: kubectl exec mixes pieces with the error line
			if wait > 0 && err != nil {
				err = fmt.Errorf("not installed after %v: %w", wait, err)
			}
			return errors.Join(err, printed)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(min(left, askAgain)):
		}
	}
}

func ask(ctx context.Context, dir string, q status.Query) (r status.Report, err error) {
	answer, err := status.Ask(ctx, dir, q.Path(), maxStatus)
	if err != nil {
		return r, err
	}
	if err = json.Unmarshal(answer, &r); err != nil {
		err = fmt.Errorf("the agent's answer: %w", err)
	} else if r.Schema != status.Schema {
		err = fmt.Errorf("the agent answers in schema %d, want %d: it is of another version", r.Schema, status.Schema)
	}
	return r, err
}

// serviceNames returns the agent's names of services: "shop/web" for "10.96.0.1:80/tcp". It waits at most namesWait.
func serviceNames(ctx context.Context, dir string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, namesWait)
	defer cancel()
	r, err := ask(ctx, dir, status.Query{Kind: status.Service})
	if err != nil {
		return nil, err
	}
	names := map[string]string{}
	for _, o := range r.Objects {
		for _, e := range o.Entries {
			if e.Why == "" { // else another may have it
				names[e.What] = o.Namespace + "/" + o.Name
			}
		}
	}
	return names, nil
}

// show prints the agent's answer. It returns an error if a selected object is faulty, or nothing has been written yet.
func show(to io.Writer, r status.Report, format string, q status.Query) error {
	if q.Name != "" && len(r.Objects) == 0 && !q.Wrong {
		return fmt.Errorf("not found: %s %s", q.Kind, q.Name)
	}
	var text bytes.Buffer
	err := status.WriteText(&text, r, q)
	if format == "json" {
		text.Reset()
		err = cli.PrintJSON(&text, r)
	}
	if err == nil {
		_, err = to.Write(text.Bytes())
	}
	wrong := 0
	for _, k := range r.Kinds {
		if q.Kind == "" {
			wrong += k.Wrong
		}
	}
	for _, o := range r.Objects {
		if q.Kind != "" && o.State == status.Wrong {
			wrong++
		}
	}
	switch {
	case err != nil:
		return err
	case r.Unread != "":
		return errors.New(r.Unread)
	case wrong > 0:
		return errors.New(count(wrong, "object is wrong", "objects are wrong"))
	case !r.Synced:
		return errors.New("not all has been written yet")
	case q.Kind == "" && !r.Well():
		return errors.New("the last round failed")
	}
	return nil
}
