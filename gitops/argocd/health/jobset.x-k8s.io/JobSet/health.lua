-- Health of a JobSet in Argo CD. Argo CD has none of its own: an Application would be Healthy as
-- soon as it is applied.
local health = { status = "Progressing", message = "waits for the JobSet controller" }
local status = obj.status or {}

local function condition(kind)
  for _, each in ipairs(status.conditions or {}) do
    if each.type == kind and each.status == "True" then return each end
  end
end

-- "reason: message" of a condition, as far as it has them. Argo CD offers no `string` library here.
local function words(found, otherwise)
  if found == nil then return otherwise end
  local reason, message = found.reason or "", found.message or ""
  if reason ~= "" and message ~= "" then return reason .. ": " .. message end
  if reason == "" and message == "" then return otherwise end
  return reason .. message
end

local completed, failed = condition("Completed"), condition("Failed")
local suspended = condition("Suspended")
if failed or status.terminalState == "Failed" then
  health.status = "Degraded"
  health.message = words(failed, "the JobSet has failed")
elseif completed or status.terminalState == "Completed" then
  health.status = "Healthy"
  health.message = words(completed, "the JobSet has completed")
elseif suspended or (obj.spec and obj.spec.suspend) then
  health.status = "Suspended"
  local queue = ((obj.metadata or {}).labels or {})["kueue.x-k8s.io/queue-name"]
  health.message = queue and ("waits for admission by the queue " .. queue)
    or "the JobSet is suspended"
elseif status.replicatedJobsStatus then
  local count = { ready = 0, succeeded = 0, failed = 0, active = 0 }
  for _, each in ipairs(status.replicatedJobsStatus) do
    for name, value in pairs(count) do count[name] = value + (each[name] or 0) end
  end
  local wanted = 0
  for _, each in ipairs((obj.spec or {}).replicatedJobs or {}) do
    wanted = wanted + (each.replicas or 1)
  end
  health.message = count.ready .. " of " .. wanted .. " Jobs ready, "
    .. count.active .. " active, " .. count.succeeded .. " succeeded, "
    .. count.failed .. " failed, restarts: " .. (status.restarts or 0)
end
return health
