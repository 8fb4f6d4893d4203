// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"

	"github.com/gorilla/websocket"
)

// Created makes the server call on for each object that a client creates, before storing it: on may change the object,
// like an API server, and put others, like a controller.
func (s *Server) Created(on func(list string, object map[string]any)) { s.created = on }

// Exec makes the server call run for each command in a pod, by WebSockets.
func (s *Server) Exec(run runner) { s.exec = run }

type runner func(pod string, command []string, stdout io.Writer) error

func (s *Server) serveExec(w http.ResponseWriter, r *http.Request, pod string) {
	const stdout, status = 1, 3 // channels
	upgrader := websocket.Upgrader{Subprotocols: []string{"v5.channel.k8s.io"}}
	conn, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer conn.Close()
	send := func(channel byte, data []byte) {
		_ = conn.WriteMessage(websocket.BinaryMessage, append([]byte{channel}, data...))
	}
	var out bytes.Buffer
	end := map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Success"}
	if err := s.exec(pod, r.URL.Query()["command"], &out); err != nil {
		end["status"], end["message"] = "Failure", err.Error()
	}
	send(stdout, out.Bytes())
	data, _ := json.Marshal(end)
	send(status, data)
	_ = conn.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""))
}
