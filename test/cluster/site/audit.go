// SPDX-License-Identifier: Apache-2.0

package site

import (
	"fmt"
	"os"
	"path/filepath"
)

// auditFlags returns flags of kube-apiserver by which it logs the requests of proxies, and
// the path of the log. Files are written into dir.
func auditFlags(dir string) (flags []string, log string, err error) {
	policy, log := filepath.Join(dir, "audit-policy.yaml"), filepath.Join(dir, "audit.log")
	rules := fmt.Sprintf(`{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
		"rules": [{"level": "Metadata", "users": ["system:serviceaccount:%s:%s"]}]}`, proxyNamespace, proxyAccount)
	return []string{"--audit-policy-file=" + policy, "--audit-log-path=" + log}, log, os.WriteFile(policy, []byte(rules), 0o600)
}
